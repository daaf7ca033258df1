// Calls of tools and their results in the forms that templates ask for.
#ifndef QLORA_PROMPT_FIT_CALL_FORMS_H_
#define QLORA_PROMPT_FIT_CALL_FORMS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "prompt/conversation.h"

namespace qlora {

// Returns the text of a value as Python's json.dumps writes it.
std::string PythonJson(const OrderedJson& value);

// Returns the messages with arguments of calls as text: that of the record, or JSON.
OrderedJson WithTextArguments(const Conversation& conversation, OrderedJson messages);
// True when the text shows arguments as Python shows a dict, {'name': ...}, which no model writes.
bool ShowsDict(const Conversation& conversation, const OrderedJson& messages,
               std::string_view text);
// The number of places where the text shows names and arguments of calls.
std::int64_t CountCalls(const OrderedJson& messages, std::string_view text);

// Returns the messages with calls that are {"name", "arguments"} in OpenAI's form, inside
// "function".
OrderedJson WithWrappedCalls(OrderedJson messages);

// Returns the messages with results that are data as JSON; empty when there is no such result.
OrderedJson WithResultsAsText(OrderedJson messages);
// True when all texts of results that are data are shown, and not in the way of Python's repr.
bool ShowsData(const OrderedJson& messages, std::string_view text);

// Returns the order of messages in which results of tools follow their calls as the calls do; empty
// when they do already, or when their ids do not tell.
std::vector<std::size_t> OrderOfCalls(const OrderedJson& messages);
// Returns the messages with the names of the called functions in results that have none: by the id
// of the call, or by their place behind the calls.
OrderedJson WithNamesOfResults(OrderedJson messages);
// Returns the messages with other ids of calls and of their results, of nine letters and digits.
OrderedJson WithShortIds(OrderedJson messages);

}  // namespace qlora

#endif  // QLORA_PROMPT_FIT_CALL_FORMS_H_
