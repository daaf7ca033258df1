// What nobody wrote: null, an empty list, an empty text and a field that is absent, in one form
// before any template sees them. docs/data.md has the table.
//
// Tables write null for a value that is missing, and Arrow gives each struct of a column the fields
// of all others. A template would print None, or take a null for a list of calls.
#ifndef QLORA_PROMPT_MISSING_VALUES_H_
#define QLORA_PROMPT_MISSING_VALUES_H_

#include <string>
#include <string_view>

#include "io/json_fwd.h"

namespace qlora {

// Removes the fields of a message that are null, but the content, and tool_calls that is an empty
// list or text.
void DropMissingFields(OrderedJson& message);

// Removes the fields of a call and of its function that are null; `function` holds "arguments" in
// the end, {} where there are none. call: {"function": {...}}, or the function itself.
void CompleteCall(OrderedJson& call);

// Returns tools as {"type": "function", "function": {...}}, as inference servers give them, with
// schemas that have no property and no keyword that is null. Where null is a value it stays: under
// `default`, `const`, `enum` and `examples`. A tool may be a text that holds JSON. `where` begins
// the message of an error: InvalidInput for a tool that is no object.
OrderedJson CompleteTools(const OrderedJson& tools, std::string_view where);

// How a template is given the content of a message that says nothing beside calls of tools. None of
// these suits all templates: some print null, others look for a text's length, others show calls
// only where the content is null.
enum class NoContent { kEmpty, kAbsent, kNull };
// Gives all such messages this form.
OrderedJson WithNoContent(OrderedJson messages, NoContent form);
// True for a message that calls tools and has no content that says anything.
bool CallsInSilence(const OrderedJson& message);

}  // namespace qlora

#endif  // QLORA_PROMPT_MISSING_VALUES_H_
