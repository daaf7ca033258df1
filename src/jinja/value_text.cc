// Values as texts: str(value) and repr(value) of Python.
//
//   value        str       repr
//   'a'          a         'a'
//   None, true   None      True
//   undefined    (empty)   Undefined
//   ['a', 1.0]             ['a', 1.0]
#include <fmt/format.h>
#include <utf8proc.h>

#include <cmath>

#include "base/printable.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

// False for unassigned characters and for the categories from separator to surrogate, but the
// space.
bool IsPrintable(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return c == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

// Uses single quotes, or double quotes when the text has single quotes only.
void AppendQuoted(std::string_view text, std::string& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = NextCharacter(p);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else {
      c < 0x100     ? AppendEscape('x', c, 2, out)
      : c < 0x10000 ? AppendEscape('u', c, 4, out)
                    : AppendEscape('U', c, 8, out);
    }
  }
  out += quote;
}

void AppendItems(Runtime& runtime, const List& list, std::string& out) {
  const bool is_list = list.kind == List::kList;
  out += is_list ? '[' : '(';
  for (const Value& item : list.items) {
    if (&item != &list.items.front()) out += ", ";
    AppendRepr(runtime, item, out);
  }
  if (!is_list && list.items.size() == 1) out += ',';
  out += is_list ? ']' : ')';
}

void AppendDict(Runtime& runtime, const Dict& dict, std::string& out) {
  out += '{';
  for (const auto& item : dict.items) {
    if (&item != &dict.items.front()) out += ", ";
    AppendRepr(runtime, item.first, out);
    out += ": ";
    AppendRepr(runtime, item.second, out);
  }
  out += '}';
}

// "0.3", "1.0": six decimals without zeros at the end.
std::string ShortDecimals(double number) {
  std::string text = fmt::format("{:f}", number);
  const std::size_t last = text.find_last_not_of('0');
  if (last != std::string::npos && text.find('.') != std::string::npos) {
    text.resize(last + (text[last] == '.' ? 2 : 1));
  }
  return text;
}

}  // namespace

std::string Str(Runtime& runtime, const Value& value) {
  std::string out;
  AppendStr(runtime, value, out);
  return out;
}

void AppendStr(Runtime& runtime, const Value& value, std::string& out) {
  if (const std::string* text = AsText(value)) {
    runtime.Append(out, *text);
  } else if (const double* number = std::get_if<double>(&value);
             number != nullptr && runtime.is_llama_cpp()) {
    runtime.Append(out, ShortDecimals(*number));
  } else if (!IsUndefined(value)) {
    AppendRepr(runtime, value, out);
  } else if (runtime.is_strict()) {
    NeedDefined(value);
  }
}

void AppendOutput(Runtime& runtime, const Value& value, std::string& out) {
  if (!runtime.is_llama_cpp()) return AppendStr(runtime, value, out);
  const DepthLevel level = runtime.Enter();
  runtime.Charge(WorkBudget::kStepWork);
  if (const List* list = AsList(value)) {
    for (const Value& item : list->items) AppendOutput(runtime, item, out);
  } else if (AsDict(value) == nullptr && !IsNone(value)) {
    AppendStr(runtime, value, out);
  }
}

void AppendRepr(Runtime& runtime, const Value& value, std::string& out) {
  const DepthLevel level = runtime.Enter();
  runtime.Charge(WorkBudget::kStepWork);
  if (const std::string* text = AsText(value)) {
    runtime.Charge(text->size());
    out += IsMarkup(value) ? "Markup(" : "";
    AppendQuoted(*text, out);
    out += IsMarkup(value) ? ")" : "";
  } else if (const bool* boolean = std::get_if<bool>(&value)) {
    out += *boolean ? "True" : "False";
  } else if (const auto integer = AsInteger(value)) {
    out += std::to_string(*integer);
  } else if (const auto* wide = std::get_if<WideInteger>(&value)) {
    runtime.Append(out, *wide->digits);
  } else if (const double* number = std::get_if<double>(&value)) {
    out += std::isnan(*number) ? "nan" : PythonRepr(*number);
  } else if (IsNone(value) || IsUndefined(value)) {
    out += IsNone(value) ? "None" : "Undefined";
  } else if (const List* list = AsList(value); list != nullptr && list->IsPlain()) {
    AppendItems(runtime, *list, out);
  } else if (const Dict* dict = AsDict(value)) {
    AppendDict(runtime, *dict, out);
  } else {
    Fail("a {} cannot be shown as text", TypeName(value));
  }
}

}  // namespace qlora::jinja
