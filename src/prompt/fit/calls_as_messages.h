// Tool calls as messages of their own, for templates that read no field of calls.
//
// GLM-4 writes a call as a turn of the assistant whose first line, `metadata` of a message, is the
// name of the function and whose content are the arguments:
//
//   {"content": "I look.", "tool_calls": [f({"x": 1}), g({})]}
//     {"content": "I look."}, {"metadata": "f", "content": {"x": 1}}, {"metadata": "g", ...}
//   <|assistant|>\nI look.<|assistant|>f\n{"x": 1}<|assistant|>g\n{}<|observation|>
#ifndef QLORA_PROMPT_FIT_CALLS_AS_MESSAGES_H_
#define QLORA_PROMPT_FIT_CALLS_AS_MESSAGES_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "prompt/assistant_turns.h"
#include "prompt/conversation.h"

namespace qlora {

// True where a template, whose text is `source`, reads calls in this way.
bool ReadsCallsAsMessages(std::string_view source);

struct SplitMessages {
  OrderedJson messages;
  std::vector<std::size_t> origins;  // per message: its number in the conversation
};

// Returns the messages of the conversation with a message for each call. arguments: the text of
// arguments that the record has as an object.
SplitMessages CallsAsMessages(const Conversation& conversation,
                              const std::function<std::string(const OrderedJson&)>& arguments);

// Makes turns in such messages turns of the conversation: what stands between the parts of one
// answer is written by the model as well.
void JoinTurns(const std::vector<std::size_t>& origins, std::vector<ChatSpan>& turns);

}  // namespace qlora

#endif  // QLORA_PROMPT_FIT_CALLS_AS_MESSAGES_H_
