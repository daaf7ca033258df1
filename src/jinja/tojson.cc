// json.dumps of a template's values: the filter tojson.
#include <algorithm>

#include "jinja/operations.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

// In double quotes. ascii: characters outside of ASCII as \uXXXX, two of them above U+FFFF.
void AppendJsonText(std::string_view text, bool ascii, std::string& out) {
  constexpr std::string_view kNamed = "\b\f\n\r\t\"\\";
  constexpr std::string_view kLetters = "bfnrt\"\\";
  const auto back = std::back_inserter(out);
  out += '"';
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = NextCharacter(p);
    const auto code = static_cast<std::uint32_t>(c);
    const std::size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      out += '\\';
      out += kLetters[named];
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      fmt::format_to(back, "\\u{:04x}", code);
    } else if (ascii && c >= 0x10000) {
      fmt::format_to(back, "\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
    } else {
      AppendUtf8(c, &out);
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style, std::string& out)
      : runtime_(runtime), style_(style), out_(out) {}

  void Write(const Value& value, int depth) {
    const Runtime::Level level(runtime_);
    runtime_.Charge(WorkBudget::kStepWork);
    if (const std::string* text = AsText(value)) {
      WriteText(*text);
    } else if (const List* list = AsList(value); list != nullptr && list->IsPlain()) {
      WriteItems('[', ']', list->items, depth, [&](const Value& item) { Write(item, depth + 1); });
    } else if (const Dict* dict = AsDict(value)) {
      WriteDict(*dict, depth);
    } else {
      out_ += Scalar(value);
    }
  }

 private:
  void WriteText(std::string_view text) {
    runtime_.Charge(text.size());
    AppendJsonText(text, style_.ascii, out_);
  }

  static std::string Scalar(const Value& value) {
    NeedDefined(value);
    if (IsNone(value)) return "null";
    if (const bool* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
    if (const auto integer = AsInteger(value)) return std::to_string(*integer);
    const double* number = std::get_if<double>(&value);
    if (number == nullptr) Fail("tojson: '{}' has no form in JSON", TypeName(value));
    if (*number != *number) return "NaN";
    const std::string text = FloatRepr(*number);
    return text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
  }

  void WriteDict(const Dict& dict, int depth) {
    std::vector<std::pair<std::string, const Value*>> items;
    for (const auto& [key, value] : dict.items) {
      runtime_.Charge(WorkBudget::kObjectWork);
      const std::string* text = AsText(key);
      if (text != nullptr) runtime_.Charge(text->size());
      items.emplace_back(text != nullptr ? *text : Scalar(key), &value);
    }
    if (style_.sort_keys) SortByKey(items);
    WriteItems('{', '}', items, depth, [&](const auto& item) {
      WriteText(item.first);
      runtime_.Append(out_, style_.key_separator);
      Write(*item.second, depth + 1);
    });
  }

  void SortByKey(std::vector<std::pair<std::string, const Value*>>& items) {
    std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
      runtime_.Charge(std::min(a.first.size(), b.first.size()) + 1);
      return a.first < b.first;
    });
  }

  template <typename Items, typename WriteItem>
  void WriteItems(char open, char close, const Items& items, int depth, WriteItem write) {
    out_ += open;
    bool first = true;
    for (const auto& item : items) {
      if (!first) runtime_.Append(out_, style_.item_separator);
      first = false;
      BreakLine(depth + 1);
      write(item);
    }
    if (!first) BreakLine(depth);
    out_ += close;
  }

  void BreakLine(int depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) runtime_.Append(out_, *style_.indent);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string& out_;
};

}  // namespace

std::string DumpJson(Runtime& runtime, const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(runtime, style, out).Write(value, 0);
  return out;
}

}  // namespace qlora::jinja
