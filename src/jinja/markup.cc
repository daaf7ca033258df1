// Texts that `safe` has marked. Chat templates are rendered without autoescape, so that only the
// operations of Markup itself escape: +, %, and its methods join, format and replace.
#include "jinja/operations.h"

namespace qlora::jinja {

Value Escaped(Runtime& runtime, const Value& value) {
  const std::string* text = AsText(value);
  if (text == nullptr || IsMarkup(value)) return value;
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr std::string_view kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
  std::string out;
  for (const char c : *text) {
    const std::size_t special = kSpecial.find(c);
    if (special == kSpecial.npos) {
      out += c;
    } else {
      out += kEscapes[special];
    }
  }
  const Value escaped = runtime.NewText(std::move(out), /*is_markup=*/true);
  if (MarksOf(runtime, value) != nullptr) LoseMarks(runtime, escaped);
  return escaped;
}

// A list or dict within a format would have to be escaped as it is shown; no known template does
// that.
Value EscapedArguments(Runtime& runtime, const Value& value) {
  const auto escaped = [&runtime](const Value& item) {
    if (AsList(item) != nullptr || AsDict(item) != nullptr) {
      Fail("a {} in a format of Markup is not supported", TypeName(item));
    }
    return Escaped(runtime, item);
  };
  if (const Dict* dict = AsDict(value)) {
    Dict* copy = runtime.New<Dict>();
    for (const auto& [name, item] : dict->items) Insert(runtime, *copy, name, escaped(item));
    return copy;
  }
  const List* list = AsList(value);
  if (list == nullptr || list->kind != List::kTuple) return escaped(value);
  std::vector<Value> items;
  for (const Value& item : list->items) items.push_back(escaped(item));
  return runtime.NewList(std::move(items), List::kTuple);
}

}  // namespace qlora::jinja
