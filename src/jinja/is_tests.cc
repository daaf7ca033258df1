// The tests of a template: `value is name`.
#include <algorithm>
#include <array>

#include "jinja/python_str.h"
#include "jinja/value.h"

namespace qlora::jinja {
namespace {

using TestFunction = bool (*)(Runtime&, const Value&, const Value& argument);

struct Test {
  std::string_view name;
  bool has_argument;
  TestFunction function;
};

template <typename T>
bool Is(Runtime&, const Value& value, const Value&) {
  return std::holds_alternative<T>(value);
}

bool IsSequence(Runtime&, const Value& value, const Value&) {
  const List* list = AsList(value);
  return AsText(value) != nullptr || AsDict(value) != nullptr || IsUndefined(value) ||
         (list != nullptr && list->kind <= List::kRange);
}

bool IsIterable(Runtime&, const Value& value, const Value&) {
  return AsText(value) != nullptr || AsDict(value) != nullptr || AsList(value) != nullptr ||
         std::holds_alternative<Loop*>(value) || IsUndefined(value);
}

std::int64_t Remainder(Runtime& runtime, const Value& value, const Value& by) {
  NeedInteger(value, "a test of divisibility");
  return NeedInteger(Arithmetic(runtime, Operator::kModulo, value, by), "a test of divisibility");
}

bool IsSame(Runtime& runtime, const Value& value, const Value& other) {
  if (AsList(value) != nullptr) return AsList(value) == AsList(other);
  if (AsDict(value) != nullptr) return AsDict(value) == AsDict(other);
  return value.index() == other.index() && Equal(runtime, value, other);
}

template <bool kLess, bool kEqual>
bool Ordered(Runtime& runtime, const Value& a, const Value& b) {
  const auto order = Compare(runtime, a, b);
  return (kLess ? order < 0 : order > 0) || (kEqual && order == 0);
}

bool AreEqual(Runtime& runtime, const Value& a, const Value& b) { return Equal(runtime, a, b); }
bool Differ(Runtime& runtime, const Value& a, const Value& b) { return !Equal(runtime, a, b); }

constexpr Test kTests[] = {
    {"!=", true, Differ},
    {"<", true, Ordered<true, false>},
    {"<=", true, Ordered<true, true>},
    {"==", true, AreEqual},
    {">", true, Ordered<false, false>},
    {">=", true, Ordered<false, true>},
    {"boolean", false, Is<bool>},
    {"callable", false, Is<Callable*>},
    {"defined", false, [](Runtime&, const Value& v, const Value&) { return !IsUndefined(v); }},
    {"divisibleby", true,
     [](Runtime& r, const Value& v, const Value& by) { return Remainder(r, v, by) == 0; }},
    {"eq", true, AreEqual},
    {"equalto", true, AreEqual},
    {"even", false,
     [](Runtime& r, const Value& v, const Value&) {
       return Remainder(r, v, std::int64_t{2}) == 0;
     }},
    {"false", false,
     [](Runtime&, const Value& v, const Value&) {
       return std::holds_alternative<bool>(v) && !std::get<bool>(v);
     }},
    {"float", false, Is<double>},
    {"ge", true, Ordered<false, true>},
    {"greaterthan", true, Ordered<false, false>},
    {"gt", true, Ordered<false, false>},
    {"in", true, [](Runtime& r, const Value& v, const Value& in) { return Contains(r, in, v); }},
    {"integer", false, Is<std::int64_t>},
    {"iterable", false, IsIterable},
    {"le", true, Ordered<true, true>},
    {"lessthan", true, Ordered<true, false>},
    {"lower", false, [](Runtime& r, const Value& v, const Value&) { return IsLower(Str(r, v)); }},
    {"lt", true, Ordered<true, false>},
    {"mapping", false, Is<Dict*>},
    {"ne", true, Differ},
    {"none", false, Is<None>},
    {"number", false,
     [](Runtime&, const Value& v, const Value&) { return AsNumber(v).has_value(); }},
    {"odd", false,
     [](Runtime& r, const Value& v, const Value&) {
       return Remainder(r, v, std::int64_t{2}) == 1;
     }},
    {"sameas", true, IsSame},
    {"sequence", false, IsSequence},
    {"string", false, Is<Text>},
    {"true", false,
     [](Runtime&, const Value& v, const Value&) {
       return std::holds_alternative<bool>(v) && std::get<bool>(v);
     }},
    {"undefined", false, Is<Undefined>},
    {"upper", false, [](Runtime& r, const Value& v, const Value&) { return IsUpper(Str(r, v)); }},
};

const Test* FindTest(std::string_view name) {
  const auto* test = std::lower_bound(std::begin(kTests), std::end(kTests), name,
                                      [](const Test& t, std::string_view n) { return t.name < n; });
  return test != std::end(kTests) && test->name == name ? test : nullptr;
}

static_assert(std::is_sorted(std::begin(kTests), std::end(kTests),
                             [](const Test& a, const Test& b) { return a.name < b.name; }));

}  // namespace

bool ApplyTest(Runtime& runtime, std::string_view name, const Value& value, Arguments arguments) {
  const Test* test = FindTest(name);
  if (test == nullptr) Fail("test '{}' is not supported", name);
  const std::size_t expected = test->has_argument ? 1 : 0;
  if (!arguments.named.empty() || arguments.positional.size() != expected) {
    Fail("test '{}': expected {} argument(s)", name, expected);
  }
  return test->function(runtime, value,
                        test->has_argument ? arguments.positional.front() : Value());
}

}  // namespace qlora::jinja
