#include "jinja/value.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "unicode/unicode.h"

namespace qlora::jinja {

// Python's bool is an int: True + 1 == 2.
std::optional<std::int64_t> AsInteger(const Value& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? 1 : 0;
  return std::nullopt;
}

std::optional<double> AsNumber(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* wide = std::get_if<WideInteger>(&value)) {
    return std::strtod(wide->digits->c_str(), nullptr);
  }
  if (const auto integer = AsInteger(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

// Python's names, for errors: a user may know the template as one of Python. A Namespace and a loop
// are Jinja's own objects.
std::string_view TypeName(const Value& value) {
  // In the order of the alternatives of Value, and of List::Kind.
  constexpr std::array<std::string_view, 12> kNames = {
      "Undefined", "NoneType", "bool", "int",       "float", "int",
      "str",       "list",     "dict", "Namespace", "loop",  "function"};
  constexpr std::array<std::string_view, 5> kListNames = {"list", "tuple", "range", "view",
                                                          "generator"};
  if (const List* list = AsList(value)) return kListNames[list->kind];
  return kNames[value.index()];
}

const std::string& NeedText(const Value& value, std::string_view use) {
  const std::string* text = AsText(value);
  if (text == nullptr) Fail("{}: expected str, found {}", use, TypeName(value));
  return *text;
}

std::int64_t NeedInteger(const Value& value, std::string_view use) {
  const auto integer = AsInteger(value);
  if (!integer) Fail("{}: expected int, found {}", use, TypeName(value));
  return *integer;
}

void NeedDefined(const Value& value) {
  const auto* undefined = std::get_if<Undefined>(&value);
  if (undefined == nullptr) return;
  if (undefined->name.empty()) Fail("an element that does not exist is used");
  Fail("'{}' is undefined", undefined->name);
}

void SetMarks(Runtime& runtime, const Value& text, Marks marks) {
  const Text* object = std::get_if<Text>(&text);
  if (object == nullptr || marks.empty()) return;
  runtime.Charge(marks.spans.size() + 1, sizeof(JinjaSpan));
  runtime.marks().Set(object->text, std::move(marks));
}

bool HasMarks(Runtime& runtime, const Value& value) {
  if (runtime.marks().empty()) return false;
  const List* list = AsList(value);
  if (list == nullptr) return MarksOf(runtime, value) != nullptr;
  runtime.Charge(list->items.size());
  return std::any_of(list->items.begin(), list->items.end(),
                     [&runtime](const Value& item) { return MarksOf(runtime, item) != nullptr; });
}

// A text that has marks is one that the operation passed on as it is.
void LoseMarks(Runtime& runtime, const Value& value) {
  const auto lose = [&runtime](const Value& item) {
    const std::string* text = AsText(item);
    if (text == nullptr || text->empty() || MarksOf(runtime, item) != nullptr) return;
    SetMarks(runtime, item, {.spans = {}, .lost = true});
  };
  const List* list = AsList(value);
  if (list == nullptr) return lose(value);
  for (const Value& item : list->items) lose(item);
}

namespace {

// Replaces ill-formed UTF-8 by U+FFFD: all texts of a rendering are well-formed.
Value TextFromJson(Runtime& runtime, const std::string& text) {
  std::string storage;
  return runtime.NewText(std::string(ValidUtf8(text, &storage)));
}

Value Wide(Runtime& runtime, std::string digits) {
  runtime.Charge(digits.size());
  return WideInteger{std::make_shared<const std::string>(std::move(digits))};
}

}  // namespace

// Objects keep the order of their keys, since a template may print them. An integer beyond 64 bits,
// of which io/json.h keeps the digits as a binary value, is not rounded. A hostile record may nest
// arrays deeply, so each level is counted.
Value FromJson(Runtime& runtime, const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  const DepthLevel level = runtime.Enter();
  switch (json.type()) {
    case Type::boolean:
      return json.get<bool>();
    case Type::number_integer:
      return json.get<std::int64_t>();
    case Type::number_unsigned: {  // of a parsed integer that is not negative
      const auto number = json.get<std::uint64_t>();
      if (number > INT64_MAX) return Wide(runtime, std::to_string(number));
      return static_cast<std::int64_t>(number);
    }
    case Type::binary:
      return Wide(runtime, std::string(json.get_binary().begin(), json.get_binary().end()));
    case Type::number_float:
      return json.get<double>();
    case Type::string:
      return TextFromJson(runtime, json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(FromJson(runtime, item));
      return runtime.NewList(std::move(items));
    }
    case Type::object: {
      Dict* dict = runtime.New<Dict>();
      for (const auto& [key, item] : json.items()) {
        runtime.Charge(sizeof(dict->items[0]));
        dict->items.emplace_back(TextFromJson(runtime, key), FromJson(runtime, item));
      }
      return dict;
    }
    default:
      return None();
  }
}

}  // namespace qlora::jinja
