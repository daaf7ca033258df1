// The tests of a template: `value is name`, also as the argument of select and reject.
#include "jinja/operations.h"

namespace qlora::jinja {
namespace {

// Names of comparisons: `value is name(argument)` is `value op argument`. Templates use these names
// in selectattr('role', 'equalto', 'user').
struct Comparison {
  std::string_view name;
  Operator op;
};
constexpr Comparison kComparisons[] = {
    {"!=", Operator::kNotEqual},     {"<", Operator::kLess},
    {"<=", Operator::kLessEqual},    {"==", Operator::kEqual},
    {">", Operator::kGreater},       {">=", Operator::kGreaterEqual},
    {"eq", Operator::kEqual},        {"equalto", Operator::kEqual},
    {"ge", Operator::kGreaterEqual}, {"greaterthan", Operator::kGreater},
    {"gt", Operator::kGreater},      {"in", Operator::kIn},
    {"le", Operator::kLessEqual},    {"lessthan", Operator::kLess},
    {"lt", Operator::kLess},         {"ne", Operator::kNotEqual},
};

// Tests of the value alone.
struct Property {
  std::string_view name;
  bool (*holds)(const Value& value);
};

template <typename T>
bool Is(const Value& value) {
  return std::holds_alternative<T>(value);
}

template <bool kExpected>
bool IsBool(const Value& value) {
  const bool* boolean = std::get_if<bool>(&value);
  return boolean != nullptr && *boolean == kExpected;
}

// Jinja asks for a length and elements by index or key, which a text and a dict have as well.
bool IsSequence(const Value& value) {
  const List* list = AsList(value);
  return list != nullptr ? list->IsIndexed()
                         : Is<Text>(value) || Is<Dict*>(value) || IsUndefined(value);
}

bool IsIterable(const Value& value) {
  return AsList(value) != nullptr || IsSequence(value) || Is<Loop*>(value);
}

constexpr Property kProperties[] = {
    {"boolean", Is<bool>},
    {"callable", Is<Callable*>},
    {"defined", [](const Value& v) { return !IsUndefined(v); }},
    {"even", [](const Value& v) { return NeedInteger(v, "even") % 2 == 0; }},
    {"false", IsBool<false>},
    {"float", Is<double>},
    {"integer", Is<std::int64_t>},
    {"iterable", IsIterable},
    {"mapping", Is<Dict*>},
    {"none", Is<None>},
    {"number", [](const Value& v) { return AsNumber(v).has_value(); }},
    {"odd", [](const Value& v) { return NeedInteger(v, "odd") % 2 != 0; }},
    {"sequence", IsSequence},
    {"string", Is<Text>},
    {"true", IsBool<true>},
    {"undefined", Is<Undefined>},
};

}  // namespace

bool ApplyTest(Runtime& runtime, std::string_view name, const Value& value,
               const Arguments& arguments) {
  const auto check_count = [&](std::size_t expected) {
    if (!arguments.named.empty() || arguments.positional.size() != expected) {
      Fail("test '{}': expected {} argument(s)", name, expected);
    }
  };
  for (const Property& property : kProperties) {
    if (property.name != name) continue;
    check_count(0);
    return property.holds(value);
  }
  for (const Comparison& comparison : kComparisons) {
    if (comparison.name != name) continue;
    check_count(1);
    return Compare(runtime, comparison.op, value, arguments.positional.front());
  }
  Fail("test '{}' is not supported", name);
}

}  // namespace qlora::jinja
