// Gives a chat template a conversation in the form that the template reads.
#ifndef QLORA_PROMPT_TEMPLATE_FIT_H_
#define QLORA_PROMPT_TEMPLATE_FIT_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/jinja.h"
#include "prompt/conversation.h"

namespace qlora {

struct FittedConversation {
  OrderedJson messages;  // in the order of the conversation
  JinjaOutput output;    // of these messages
  // Per message, its number in the conversation; empty: as many, one for one.
  std::vector<std::size_t> origins = {};
  std::vector<std::string> readings = {};  // "thinking as reasoning_content"
};

// Renders a conversation. Where the template, whose text is `source`, reads thoughts under another
// name than the record has, they are given under that name; where it shows them as parts of the
// content alone, as such parts. Where it fails with tool-call arguments
// as objects, or prints them as Python does, they are given as text: that of the record, or JSON.
// Where it reads calls as messages, they become messages (calls_as_messages.h).
// Where it refuses or skips a role that other templates know, its messages have the usual role;
// where it skips results of tools and knows them under another name, they have that.
// Errors: those of `render` for the conversation as it is.
FittedConversation FitToTemplate(const Conversation& conversation, std::string_view source,
                                 const std::function<JinjaOutput(const OrderedJson&)>& render);

// True when `word` stands in the text and is not a part of a longer name.
bool HasWholeWord(std::string_view text, std::string_view word);
// True when a template names a field: as .name, or as a text in quotes.
bool NamesField(std::string_view source, std::string_view name);

}  // namespace qlora

#endif  // QLORA_PROMPT_TEMPLATE_FIT_H_
