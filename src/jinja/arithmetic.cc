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

std::int64_t Power(std::int64_t base, std::int64_t exponent, bool& overflow) {
  std::int64_t result = 1;
  for (; exponent > 0 && !overflow; exponent >>= 1) {
    if ((exponent & 1) != 0) overflow |= __builtin_mul_overflow(result, base, &result);
    if (exponent > 1) overflow |= __builtin_mul_overflow(base, base, &base);
  }
  return result;
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
    case Operator::kPower:
      result = Power(a, b, overflow);
      break;
    default:
      return op == Operator::kModulo ? FloorDivide(a, b).second : FloorDivide(a, b).first;
  }
  if (overflow) Fail("the result does not fit in 64 bits");
  return result;
}

// Python has an error, or a complex number, where C++ has an infinity or NaN.
double FloatPower(double base, double exponent) {
  const double result = std::pow(base, exponent);
  if (std::isfinite(base) && std::isfinite(exponent) && !std::isfinite(result)) {
    Fail("{} ** {} is not a finite number", base, exponent);
  }
  return result;
}

// Arithmetic of floats, also of a float and an integer. The remainder has the sign of b, as above.
Value OfNumbers(Operator op, double a, double b) {
  if (op == Operator::kAdd) return a + b;
  if (op == Operator::kSubtract) return a - b;
  if (op == Operator::kMultiply) return a * b;
  if (op == Operator::kPower) return FloatPower(a, b);
  if (b == 0) Fail("division by zero");
  if (op == Operator::kDivide) return a / b;
  if (op == Operator::kFloorDivide) return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Repeats a text, a list or a tuple; undefined for other values. The whole result is paid for
// before its first element is written.
Value Repeat(Runtime& runtime, const Value& value, std::int64_t times) {
  const std::string* text = AsText(value);
  const List* list = AsList(value);
  if (text == nullptr && (list == nullptr || !list->IsPlain())) return Undefined();
  const std::size_t size = text != nullptr ? text->size() : list->items.size();
  const std::size_t count = times < 0 || size == 0 ? 0 : static_cast<std::size_t>(times);
  runtime.Charge(count, text != nullptr ? size : size * sizeof(Value));
  std::string out;
  std::vector<Value> items;
  for (std::size_t i = 0; i < count; ++i) {
    text != nullptr ? void(out += *text)
                    : void(items.insert(items.end(), list->items.begin(), list->items.end()));
  }
  return text != nullptr ? runtime.NewTextLike(value, std::move(out))
                         : Value(runtime.NewList(std::move(items), list->kind));
}

// Joins two texts, two lists or two tuples; undefined for other values.
Value JoinSequences(Runtime& runtime, const Value& a, const Value& b) {
  if (AsText(a) != nullptr && AsText(b) != nullptr) {
    const bool is_markup = IsMarkup(a) || IsMarkup(b);
    const Value left = is_markup ? Escaped(runtime, a) : a;
    const Value right = is_markup ? Escaped(runtime, b) : b;
    const Value text = runtime.NewText(*AsText(left) + *AsText(right), is_markup);
    JoinMarks(runtime, left, right, AsText(left)->size(), text);
    return text;
  }
  const List* first = AsList(a);
  const List* second = AsList(b);
  const bool are_lists = first != nullptr && second != nullptr && first->IsPlain();
  if (!are_lists || first->kind != second->kind) return Undefined();
  std::vector<Value> items = first->items;
  items.insert(items.end(), second->items.begin(), second->items.end());
  return runtime.NewList(std::move(items), first->kind);
}

std::string_view SignOf(Operator op) {
  constexpr std::array<std::string_view, 8> kSymbols = {"+", "-", "~", "*", "/", "//", "%", "**"};
  return kSymbols[static_cast<int>(op) - static_cast<int>(Operator::kAdd)];
}

}  // namespace

void JoinMarks(Runtime& runtime, const Value& a, const Value& b, std::size_t offset,
               const Value& result) {
  Marks joined;
  if (const Marks* marks = MarksOf(runtime, a)) joined.Append(*marks, 0);
  if (const Marks* marks = MarksOf(runtime, b)) joined.Append(*marks, offset);
  SetMarks(runtime, result, std::move(joined));
}

// Each rule gives a result or leaves the operands to the next rule; undefined: no rule applies.
Value Arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  NeedDefined(a);
  if (op == Operator::kModulo && IsMarkup(a)) {
    const Value text = FormatPercent(runtime, *AsText(a), EscapedArguments(runtime, b));
    return runtime.NewText(*AsText(text), /*is_markup=*/true);
  }
  if (op == Operator::kModulo && AsText(a) != nullptr) return FormatPercent(runtime, *AsText(a), b);
  NeedDefined(b);
  const auto left = AsInteger(a);
  const auto right = AsInteger(b);
  if (left && right && (op != Operator::kPower || *right >= 0))
    return OfIntegers(op, *left, *right);
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
