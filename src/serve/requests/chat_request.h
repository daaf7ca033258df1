// The body of a chat completion.
#ifndef QLORA_SERVE_REQUESTS_CHAT_REQUEST_H_
#define QLORA_SERVE_REQUESTS_CHAT_REQUEST_H_

#include "serve/generation_service.h"
#include "serve/request_fields.h"
#include "serve/requests/conversation_request.h"
#include "serve/requests/sampling_fields.h"
#include "serve/serve_options.h"
#include "serve/served_models.h"

namespace qlora {

// Reads what decides on the prompt: messages, tools, tool_choice, reasoning_effort and
// chat_template_kwargs. Errors: ApiError 400 that names what no template could show: other roles,
// parts that are no text, results of calls that nobody made; and fields that are not offered here.
ConversationRequest ReadChatConversation(const RequestFields& body, const ServedModel& model);

struct ChatRequest {
  ServedModelPtr model = {};
  ConversationRequest conversation = {};
  ConversationPrompt prompt = {};
  GenerationRequest generation = {};
  AnswerFields answers = {};
};
// Errors: ApiError 400 that names the field; 404 for a model that is not there.
ChatRequest ReadChat(const RequestFields& body, const ServedModels& models,
                     const ServeOptions& options);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_CHAT_REQUEST_H_
