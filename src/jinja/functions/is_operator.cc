// The tests of a template: `value is name`, also as the argument of select and reject.
#include <algorithm>

#include "base/text.h"
#include "jinja/functions/call.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

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

// `value is sameas other`: the same object, not an equal copy. Numbers and texts have no identity
// here, so equal ones of one type are the same: Python's small numbers and literals are, too.
bool IsSame(Runtime& runtime, const Value& value, const Value& other) {
  if (AsList(value) != nullptr) return AsList(value) == AsList(other);
  if (AsDict(value) != nullptr) return AsDict(value) == AsDict(other);
  return value.index() == other.index() && Equal(runtime, value, other);
}

// `value is divisibleby number`; not of floats, whose remainder seldom is exactly 0.
bool IsDivisible(Runtime& runtime, const Value& value, const Value& by) {
  NeedInteger(value, "divisibleby");
  return !Truth(Arithmetic(runtime, Operator::kModulo, value, by));
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
    {"callable", [](const Value& v) { return Is<Callable*>(v) || IsUndefined(v); }},
    {"defined", [](const Value& v) { return !IsUndefined(v); }},
    {"escaped", IsMarkup},
    {"even", [](const Value& v) { return NeedInteger(v, "even") % 2 == 0; }},
    {"false", IsBool<false>},
    {"float", Is<double>},
    {"integer", [](const Value& v) { return Is<std::int64_t>(v) || Is<WideInteger>(v); }},
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

// Tests that the tables do not have.
constexpr std::string_view kOtherTests = "divisibleby filter lower sameas test upper";

bool IsTestName(std::string_view name) {
  const auto has = [name](const auto& table) {
    return std::ranges::any_of(table, [name](const auto& one) { return one.name == name; });
  };
  return has(kProperties) || has(kComparisons) || HasWord(kOtherTests, name);
}

}  // namespace

// A wrong number of arguments is an error even where the test could ignore them, as in Jinja.
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
  if (name == "lower" || name == "upper") {
    check_count(0);
    return HasCase(Str(runtime, value), name == "lower" ? kLower : kUpperOrTitle);
  }
  if (name == "filter" || name == "test") {
    check_count(0);
    const std::string* text = AsText(value);
    return text != nullptr && (name == "test" ? IsTestName(*text) : FindFilter(*text) != nullptr);
  }
  if (name == "divisibleby" || name == "sameas") {
    check_count(1);
    const auto test = name == "sameas" ? IsSame : IsDivisible;
    return test(runtime, value, arguments.positional.front());
  }
  Fail("test '{}' is not supported, nor known to Jinja2; write a template without it", name);
}

}  // namespace qlora::jinja
