// What chat completions, responses and messages ask alike: a conversation, tools, and how the
// answer is read.
#ifndef QLORA_SERVE_ROUTES_CONVERSATION_REQUEST_H_
#define QLORA_SERVE_ROUTES_CONVERSATION_REQUEST_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/json_fwd.h"
#include "serve/answer_parts.h"
#include "serve/request_fields.h"
#include "serve/served_models.h"

namespace qlora {

// In the form of chat completions, which is that of chat templates.
struct ConversationRequest {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = {};      // [{"type": "function", "function": {...}}], or null
  OrderedJson variables = {};  // of the chat template: an object, or null
  bool reads_calls = false;    // there are tools, and the answer may call them
};

// Variables that make a template think or not: enable_thinking, and the other names that the
// template of the model reads for it.
void SetThinking(bool thinks, const ServedModel& model, ConversationRequest& request);

// Checks what every interface asks of tools: an object with a name that calls can have, and
// parameters that are an object. path: of the function in the request.
OrderedJson ToolOf(const RequestFields& function, const std::string& parameters_field);

// Refuses results of tools whose call no message before them makes; the error names the id.
// results_field: what the interface calls the id, for the message.
void CheckResults(const OrderedJson& messages, const std::string& path);

// What the model reads.
struct ConversationPrompt {
  std::string text = {};
  std::vector<std::int32_t> tokens = {};
  bool begins_with_thought = false;
  bool keeps_special_tokens = false;  // of the answer, for AnswerParts
};
// Errors: ApiError 400 with what the chat template says, and for a model without one.
ConversationPrompt PromptOf(const ServedModel& model, const ConversationRequest& request);

// What reads one answer to such a prompt.
AnswerParts PartsOf(const ServedModel& model, const ConversationRequest& request,
                    const ConversationPrompt& prompt);

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_CONVERSATION_REQUEST_H_
