// tool_choice: whether an answer may call tools, must, or must call a certain one.
#ifndef QLORA_SERVE_REQUESTS_TOOL_CHOICE_H_
#define QLORA_SERVE_REQUESTS_TOOL_CHOICE_H_

#include <functional>

#include "io/json_fwd.h"
#include "serve/request_fields.h"
#include "serve/requests/conversation_request.h"
#include "serve/served_models.h"

namespace qlora {

// Offers tools to the model, where the choice is not against them. Reads tools, tool_of each by
// ToolOf, parallel_tool_calls, and of tool_choice "auto", "none", "required", {"type": one of
// these, or "any"}, and {"type": "function" or "tool"} with the name of one, and
// disable_parallel_tool_use. Errors: ApiError 400; also where there are none, and one must be
// called.
void ReadTools(const RequestFields& body, ConversationRequest& request,
               const std::function<OrderedJson(const RequestFields& tool)>& tool_of);

// The one call that such an answer is, as a grammar over the schemas of the tools. Errors: ApiError
// 400 for a schema that is not kept, and a model whose calls are not written as JSON.
AnswerGrammar ForcedCall(const ServedModel& model, const ConversationRequest& request);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_TOOL_CHOICE_H_
