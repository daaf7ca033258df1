// Reads requests of Anthropic's messages: what is asked, as chat completions say it.
#ifndef QLORA_SERVE_REQUESTS_MESSAGE_REQUEST_H_
#define QLORA_SERVE_REQUESTS_MESSAGE_REQUEST_H_

#include "serve/request_fields.h"
#include "serve/requests/conversation_request.h"
#include "serve/served_models.h"

namespace qlora {

// Errors: ApiError 400 that names the field.
ConversationRequest ReadMessageRequest(const RequestFields& body, const ServedModel& model);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_MESSAGE_REQUEST_H_
