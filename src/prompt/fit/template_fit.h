// Gives a chat template a conversation in the form that the template reads.
#ifndef QLORA_PROMPT_FIT_TEMPLATE_FIT_H_
#define QLORA_PROMPT_FIT_TEMPLATE_FIT_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/jinja.h"
#include "prompt/conversation.h"

namespace qlora {

struct FittedConversation {
  OrderedJson messages;  // in the order of the conversation, or of the calls
  JinjaOutput output;    // of these messages
  // Per message, its number in the conversation; empty: the same, but for the order of results.
  std::vector<std::size_t> origins = {};
  std::vector<std::string> readings = {};  // "thinking as reasoning_content"
};

// Renders a conversation in a form that the template, whose text is `source`, takes and shows:
// - of the forms of a content that says nothing beside calls, the one that shows the calls and
//   nothing else (missing_values.h);
// - thoughts under the name that it reads, or as parts of the content where it reads these alone;
// - arguments of calls as text, that of the record or JSON, where it fails with objects, or prints
//   them as Python does; results of tools that are data as JSON where it does not show them so;
// - calls as messages (calls_as_messages.h) where it reads them so;
// - the usual role where it refuses or skips one that other templates know, and another name of the
//   role of results where it skips them;
// - a text that the record has in parts as parts, where it reads these: some trim each;
// - results of tools with the names of the called functions where it asks for these, and in the
//   order of the calls where it shows no ids;
// - short ids of calls where it refuses all else.
// Errors: those of `render` for the conversation as it is.
FittedConversation FitToTemplate(const Conversation& conversation, std::string_view source,
                                 const std::function<JinjaOutput(const OrderedJson&)>& render);

}  // namespace qlora

#endif  // QLORA_PROMPT_FIT_TEMPLATE_FIT_H_
