// Conversations: from the records that people write to the messages that a chat template takes.
#ifndef QLORA_PROMPT_CONVERSATION_H_
#define QLORA_PROMPT_CONVERSATION_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// One conversation, in the form that chat templates take.
struct Conversation {
  OrderedJson messages;       // objects {role, content, ...}; content is text or null
  OrderedJson tools;          // array, or null
  std::vector<bool> trained;  // per message: an assistant's turn that is to be learned
};

// Reads {"messages": [{"role", "content", ...}], "tools": [...]}, the form of OpenAI and Hugging
// Face. A content of text parts is joined; tool-call arguments given as a string of JSON become the
// object, as templates expect; "weight": 0 on an assistant's message keeps it out of the loss.
// Errors (all functions): InvalidInput, without a place in the data, naming the message.
Conversation ConversationOfMessages(const OrderedJson& record);

// Reads {"conversations": [{"from", "value"}], "system": "...", "tools": "..."}, the form of
// ShareGPT. from: human or user; gpt, assistant, chatgpt, bing, bard or model; system; tool,
// observation or function_response; function_call (its value is the call as JSON).
Conversation ConversationOfShareGpt(const OrderedJson& record);

// Reads {"prompt": [messages], "completion": [messages]}: only the completion is trained on.
Conversation ConversationOfCompletion(const OrderedJson& record);

}  // namespace qlora

#endif  // QLORA_PROMPT_CONVERSATION_H_
