// Arithmetic of a template's values, as Python's; integers have 64 bits, and a result that does not
// fit is an error.
#include <array>
#include <cmath>

#include "jinja/operations.h"

namespace qlora::jinja {
namespace {

// (a // b, a % b): the quotient is rounded towards minus infinity, so that the remainder has the
// sign of b. C++ rounds towards zero: -7 / 2 = -3 rest -1, but -7 // 2 = -4 rest 1.
std::pair<std::int64_t, std::int64_t> FloorDivide(std::int64_t a, std::int64_t b) {
  if (b == 0) Fail("division by zero");
  if (b == -1 && a == INT64_MIN) Fail("the result does not fit in 64 bits");
  const std::int64_t quotient = a / b;
  const std::int64_t rest = a % b;
  if (rest == 0 || (rest < 0) == (b < 0)) return {quotient, rest};
  return {quotient - 1, rest + b};
}

// Python's integers have no limit; a template that leaves 64 bits is refused, never rendered
// wrongly.
Value OfIntegers(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kDivide:
      if (b == 0) Fail("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    default:
      return op == Operator::kModulo ? FloorDivide(a, b).second : FloorDivide(a, b).first;
  }
  if (overflow) Fail("the result does not fit in 64 bits");
  return result;
}

// Arithmetic of floats, also of a float and an integer. The remainder has the sign of b, as above.
Value OfNumbers(Operator op, double a, double b) {
  if (op == Operator::kAdd) return a + b;
  if (op == Operator::kSubtract) return a - b;
  if (op == Operator::kMultiply) return a * b;
  if (b == 0) Fail("division by zero");
  if (op == Operator::kDivide) return a / b;
  if (op == Operator::kFloorDivide) return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Repeats a text; undefined when `value` is not a text. The whole result is paid for before its
// first byte is written.
Value Repeat(Runtime& runtime, const Value& value, std::int64_t times) {
  const std::string* text = AsText(value);
  if (text == nullptr) return Undefined();
  const std::size_t count = times < 0 ? 0 : static_cast<std::size_t>(times);
  runtime.Charge(count, text->size());
  std::string out;
  for (std::size_t i = 0; i < count && !text->empty(); ++i) out += *text;
  return runtime.NewText(std::move(out));
}

// Joins two texts, two lists or two tuples; undefined for other values.
Value JoinSequences(Runtime& runtime, const Value& a, const Value& b) {
  if (AsText(a) != nullptr && AsText(b) != nullptr) return runtime.NewText(*AsText(a) + *AsText(b));
  const List* first = AsList(a);
  const List* second = AsList(b);
  const bool are_lists = first != nullptr && second != nullptr && first->IsPlain();
  if (!are_lists || first->kind != second->kind) return Undefined();
  std::vector<Value> items = first->items;
  items.insert(items.end(), second->items.begin(), second->items.end());
  return runtime.NewList(std::move(items), first->kind);
}

std::string_view SignOf(Operator op) {
  constexpr std::array<std::string_view, 7> kSymbols = {"+", "-", "~", "*", "/", "//", "%"};
  return kSymbols[static_cast<int>(op) - static_cast<int>(Operator::kAdd)];
}

}  // namespace

// Each rule gives a result or leaves the operands to the next rule; undefined: no rule applies.
Value Arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  NeedDefined(a);
  NeedDefined(b);
  const auto left = AsInteger(a);
  const auto right = AsInteger(b);
  if (left && right) return OfIntegers(op, *left, *right);
  if (AsNumber(a) && AsNumber(b)) return OfNumbers(op, *AsNumber(a), *AsNumber(b));
  Value result;
  if (op == Operator::kAdd) result = JoinSequences(runtime, a, b);
  if (op == Operator::kMultiply && right) result = Repeat(runtime, a, *right);
  if (op == Operator::kMultiply && left) result = Repeat(runtime, b, *left);
  if (IsUndefined(result)) {
    Fail("'{}' {} '{}' is not possible or not supported", TypeName(a), SignOf(op), TypeName(b));
  }
  return result;
}

}  // namespace qlora::jinja
