// Reads requests of OpenAI's responses: what is asked, as chat completions say it.
#ifndef QLORA_SERVE_REQUESTS_RESPONSE_REQUEST_H_
#define QLORA_SERVE_REQUESTS_RESPONSE_REQUEST_H_

#include "io/json_fwd.h"
#include "serve/request_fields.h"
#include "serve/requests/conversation_request.h"
#include "serve/served_models.h"

namespace qlora {

// Nothing is kept here, so that what refers to earlier answers is refused. Errors: ApiError 400
// that names the field.
ConversationRequest ReadResponseRequest(const RequestFields& body, const ServedModel& model);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_RESPONSE_REQUEST_H_
