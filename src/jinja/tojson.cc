// json.dumps of a template's values.
#include <algorithm>

#include "jinja/python_str.h"
#include "jinja/value.h"

namespace qlora::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style, std::string& out)
      : runtime_(runtime), style_(style), out_(out) {}

  void Write(const Value& value, int depth) {
    const Runtime::Level level(runtime_);
    runtime_.Charge(1);
    if (const std::string* text = AsText(value)) {
      runtime_.Charge(text->size());
      AppendJsonText(*text, style_.ascii, out_);
    } else if (const List* list = AsList(value); list != nullptr && list->kind <= List::kTuple) {
      WriteItems('[', ']', list->items, depth, [&](const Value& item) { Write(item, depth + 1); });
    } else if (const Dict* dict = AsDict(value)) {
      WriteDict(*dict, depth);
    } else {
      out_ += Scalar(value);
    }
  }

 private:
  std::string Scalar(const Value& value) const {
    if (IsNone(value)) return "null";
    if (const bool* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
    if (const auto integer = AsInteger(value)) return std::to_string(*integer);
    const double* number = std::get_if<double>(&value);
    if (number == nullptr) {
      if (const auto* undefined = std::get_if<Undefined>(&value)) FailUndefined(*undefined);
      Fail("tojson: '{}' has no form in JSON", TypeName(value));
    }
    if (*number != *number) return "NaN";
    const std::string text = FloatRepr(*number);
    return text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
  }

  void WriteDict(const Dict& dict, int depth) {
    std::vector<std::pair<std::string, const Value*>> items;
    for (const auto& [key, value] : dict.items) {
      if (const std::string* text = AsText(key)) {
        runtime_.Charge(text->size());
        items.emplace_back(*text, &value);
      } else {
        if (AsList(key) != nullptr) Fail("tojson: a tuple cannot be a key in JSON");
        items.emplace_back(Scalar(key), &value);
      }
    }
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    WriteItems('{', '}', items, depth, [&](const auto& item) {
      AppendJsonText(item.first, style_.ascii, out_);
      out_ += style_.key_separator;
      Write(*item.second, depth + 1);
    });
  }

  template <typename Items, typename WriteItem>
  void WriteItems(char open, char close, const Items& items, int depth, WriteItem write) {
    out_ += open;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_ += style_.item_separator;
      first = false;
      BreakLine(depth + 1);
      write(item);
    }
    if (!first) BreakLine(depth);
    out_ += close;
  }

  void BreakLine(int depth) {
    if (!style_.indent) return;
    runtime_.Charge(static_cast<std::size_t>(depth) * style_.indent->size());
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += *style_.indent;
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
