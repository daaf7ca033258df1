// Conversations: from the records that people write to the messages that a chat template takes, and
// the interface of whoever renders them.
#ifndef QLORA_DATA_CONVERSATION_H_
#define QLORA_DATA_CONVERSATION_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "data/record_file.h"

namespace qlora {

// Bytes [begin, end) of a rendered conversation, written by the assistant in messages[message]: its
// content, its tool calls and the end-of-turn token.
struct ChatSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t message = 0;
};

struct RenderedChat {
  std::string text;                 // special tokens included, BOS too where the template has it
  std::vector<ChatSpan> assistant;  // ascending, disjoint
};

class ChatRenderer {
 public:
  virtual ~ChatRenderer() = default;

  // `messages` is an array of objects with at least a role; `tools` an array or null. May be called
  // by several threads. Errors: InvalidInput, without a place in the data, when the template fails.
  virtual RenderedChat Render(const OrderedJson& messages, const OrderedJson& tools) const = 0;

  // What the rendering depends on: the text of the template.
  virtual std::string source() const = 0;
};

// One conversation, in the form that chat templates take.
struct Conversation {
  OrderedJson messages;       // objects {role, content, ...}; content is text or null
  OrderedJson tools;          // array, or null
  std::vector<bool> trained;  // per message: an assistant's turn that is to be learned
};

// {"messages": [{"role", "content", ...}], "tools": [...]}, the form of OpenAI and Hugging Face.
// A content of text parts is joined; tool-call arguments given as a string of JSON become the
// object, as templates expect; "weight": 0 on an assistant's message keeps it out of the loss.
// Errors (all functions): InvalidInput, without a place in the data, naming the message.
Conversation ConversationOfMessages(const OrderedJson& record);

// {"conversations": [{"from", "value"}], "system": "...", "tools": "..."}, the form of ShareGPT.
// from: human or user; gpt, assistant, chatgpt, bing, bard or model; system; tool, observation or
// function_response; function_call (its value is the call as JSON).
Conversation ConversationOfShareGpt(const OrderedJson& record);

// {"prompt": [messages], "completion": [messages]}: only the completion is trained on.
Conversation ConversationOfCompletion(const OrderedJson& record);

}  // namespace qlora

#endif  // QLORA_DATA_CONVERSATION_H_
