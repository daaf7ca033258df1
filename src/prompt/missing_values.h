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

// Returns a value that tables must write as a text that holds JSON. An empty text is null. Errors:
// InvalidInput, which begins with `where`.
OrderedJson ParsedText(const OrderedJson& value, const std::string& where);

// Removes the fields of a message that are null, an empty list or an empty object, but the content,
// and tool_calls that is an empty text.
void DropMissingFields(OrderedJson& message);

// Removes the fields that are null from a value and all that it holds. Nulls of lists stay.
void DropNulls(OrderedJson& value);

// Removes the fields of a call and of its function that are null; `function` holds "arguments" in
// the end, {} where there are none. call: {"function": {...}}, or the function itself. Errors:
// InvalidInput, which begins with `where`, for arguments under two names that differ.
void CompleteCall(OrderedJson& call, const std::string& where);
// True for the names that programs give to the arguments of a call.
bool IsArgumentsName(std::string_view name);

// Removes the arguments of a call that are null and that no tool of its name has: Arrow gives them
// to each call of a column. True when others are null, which may be meant. tools: an array, or
// null.
bool DropForeignArguments(OrderedJson& function, const OrderedJson& tools);

// Returns tools as {"type": "function", "function": {...}}, as inference servers give them, with
// schemas that have no property and no keyword that is null. Where null is a value it stays: as
// `default` and `const`, and in the lists of `enum` and `examples`. A tool, and its parameters, may
// be a text that holds JSON. `where` begins the message of an error: InvalidInput for a tool that
// is no object.
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
