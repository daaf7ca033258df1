// Roles, thoughts and texts of messages in the forms that templates ask for.
#ifndef QLORA_PROMPT_FIT_MESSAGE_FORMS_H_
#define QLORA_PROMPT_FIT_MESSAGE_FORMS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "prompt/conversation.h"

namespace qlora {

// Gives thoughts a second name where the template does not seem to read them under their own; the
// source may put the name together.
void OfferThoughts(std::string_view source, OrderedJson& messages,
                   std::vector<std::string>& readings);
// True when the text shows the thoughts of an answer, or no answer has any.
bool ShowsThoughts(const OrderedJson& messages, std::string_view text);
// Returns the messages with thoughts as parts of the contents, before the text.
OrderedJson WithThoughtParts(OrderedJson messages);

// Returns the messages with texts in the parts that the record has, or, with `joined`, as one part;
// empty when all texts are in one. origins: as of FittedConversation.
OrderedJson WithTextParts(const Conversation& conversation, OrderedJson messages,
                          const std::vector<std::size_t>& origins, bool joined);

// The first role that the text does not show and that has a usual name; "" when there is none.
std::string SkippedRole(const OrderedJson& messages, std::string_view text);
// True for another name of a role that the template does not name, where it names the usual one:
// such a template may show the message, but not as what it is.
bool IsForeignRole(std::string_view source, std::string_view role);
// Returns the messages with usual names of roles in place of those that `replaced` is true of.
OrderedJson WithUsualRoles(OrderedJson messages,
                           const std::function<bool(std::string_view)>& replaced,
                           std::vector<std::string>& readings);
OrderedJson WithRole(OrderedJson messages, std::string_view from, std::string_view to);

}  // namespace qlora

#endif  // QLORA_PROMPT_FIT_MESSAGE_FORMS_H_
