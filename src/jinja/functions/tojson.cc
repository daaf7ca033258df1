// json.dumps of a template's values: the filter tojson. A value may hold one list many times, as
// [x, x] with x = [y, y] ..., so each visit is paid for, and each level is counted.
#include <algorithm>
#include <cmath>

#include "base/printable.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

// Quotes a text. ascii: characters outside of ASCII as \uXXXX, those above U+FFFF as a pair of
// surrogates: U+1F600 is \ud83d\ude00.
void AppendJsonText(std::string_view text, bool ascii, std::string& out) {
  constexpr std::string_view kNamed = "\b\f\n\r\t\"\\";
  constexpr std::string_view kLetters = "bfnrt\"\\";
  out += '"';
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = NextCharacter(p);
    const std::size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      out += '\\';
      out += kLetters[named];
    } else if (c >= 0x20 && (c < 0x7F || !ascii)) {
      AppendUtf8(c, &out);
    } else if (c < 0x10000) {
      AppendEscape('u', c, 4, out);
    } else {
      AppendEscape('u', 0xD7C0 + (c >> 10), 4, out);
      AppendEscape('u', 0xDC00 + (c & 0x3FF), 4, out);
    }
  }
  out += '"';
}

// Python writes NaN and Infinity, which are not JSON, in this way.
std::string JsonScalar(const Value& value) {
  NeedDefined(value);
  if (IsNone(value)) return "null";
  if (const bool* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  if (const auto integer = AsInteger(value)) return std::to_string(*integer);
  if (const auto* wide = std::get_if<WideInteger>(&value)) return *wide->digits;
  const double* number = std::get_if<double>(&value);
  if (number == nullptr) Fail("tojson: '{}' has no form in JSON", TypeName(value));
  if (std::isnan(*number)) return "NaN";
  if (std::isinf(*number)) return *number < 0 ? "-Infinity" : "Infinity";
  return PythonRepr(*number);
}

// Writes one value.
class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  // depth: the number of brackets around the value, for the indentation.
  void Write(const Value& value, int depth) {
    const DepthLevel level = runtime_.Enter();
    runtime_.Charge(WorkBudget::kStepWork);
    const List* list = AsList(value);
    if (list != nullptr && list->IsPlain()) {
      WriteItems("[]", list->items, depth, [&](const Value& item) { Write(item, depth + 1); });
    } else if (const Dict* dict = AsDict(value)) {
      WriteItems("{}", Sorted(dict->items), depth, [&](const auto& item) {
        WriteScalar(item.first, /*is_key=*/true);
        runtime_.Append(out_, style_.key_separator);
        Write(item.second, depth + 1);
      });
    } else {
      WriteScalar(value, /*is_key=*/false);
    }
  }

  std::string TakeText() { return std::move(out_); }

 private:
  // The items of a dict in the order in which they are written. Python sorts the keys as values.
  std::vector<std::pair<Value, Value>> Sorted(std::vector<std::pair<Value, Value>> items) {
    runtime_.Charge(items.size(), sizeof(items[0]));
    if (!style_.sort_keys) return items;
    std::ranges::stable_sort(
        items, [&](const auto& a, const auto& b) { return Order(runtime_, a.first, b.first) < 0; });
    return items;
  }

  // A key that is not a text becomes one: {1: 2} -> {"1": 2}.
  void WriteScalar(const Value& value, bool is_key) {
    if (const std::string* text = AsText(value)) {
      runtime_.Charge(text->size());
      AppendJsonText(*text, style_.ascii, out_);
    } else {
      out_ += is_key ? '"' + JsonScalar(value) + '"' : JsonScalar(value);
    }
  }

  // [1, 2] or, with an indentation, one item a line:
  //   [
  //     1,
  //     2
  //   ]
  template <typename Items, typename WriteItem>
  void WriteItems(std::string_view brackets, const Items& items, int depth, WriteItem write) {
    out_ += brackets[0];
    bool first = true;
    for (const auto& item : items) {
      if (!first) runtime_.Append(out_, style_.item_separator);
      first = false;
      BreakLine(depth + 1);
      write(item);
    }
    if (!first) BreakLine(depth);
    out_ += brackets[1];
  }

  void BreakLine(int depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) runtime_.Append(out_, *style_.indent);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Value DumpJson(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.Write(value, 0);
  return runtime.NewText(writer.TakeText());
}

}  // namespace qlora::jinja
