// Prompts and answers of preferences as lists of messages.
#ifndef QLORA_PREFERENCE_ANSWER_MESSAGES_H_
#define QLORA_PREFERENCE_ANSWER_MESSAGES_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "io/json.h"

namespace qlora {

// True for a message of the assistant, a call of a tool among them.
bool IsAnswer(const OrderedJson& message);
// "text", "a message" ...: what a field holds.
std::string_view KindOf(const OrderedJson& value);

// Errors: InvalidInput for anything that is no answer; name: of the field.
void CheckAnswer(const OrderedJson& answer, std::string_view name);
// Errors: InvalidInput for what is no list of messages, or ends with one of the assistant.
void CheckPrompt(const OrderedJson& turns, std::string_view name);

// An answer, text or message, as a list of messages.
OrderedJson MessagesOf(const OrderedJson& answer);
// The number of messages that both sides begin with, and after which the assistant answers.
std::size_t CommonMessages(const OrderedJson& chosen, const OrderedJson& rejected);
OrderedJson Slice(const OrderedJson& list, std::size_t begin, std::size_t end);
// True for a longer list than `prefix` whose first messages are these.
bool BeginsWith(const OrderedJson& list, const OrderedJson& prefix);
// True where a message has this text, but for white space around it.
bool HasContent(const OrderedJson& messages, const std::string& text);
// What an answer of several turns was asked on its way.
OrderedJson AskedIn(const OrderedJson& answer);

}  // namespace qlora

#endif  // QLORA_PREFERENCE_ANSWER_MESSAGES_H_
