// Arithmetic of a template's values, as Python's.
#include <array>
#include <cmath>

#include "jinja/string_format.h"
#include "jinja/value.h"

namespace qlora::jinja {
namespace {

constexpr std::array<std::string_view, 7> kSymbols = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void FailOverflow() { Fail("the result does not fit in 64 bits"); }

// Rounded towards minus infinity; the remainder has the sign of b.
std::int64_t FloorDivide(std::int64_t a, std::int64_t b) {
  if (b == 0) Fail("division by zero");
  if (b == -1) {
    if (a == INT64_MIN) FailOverflow();
    return -a;
  }
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t Power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) FailOverflow();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) FailOverflow();
  }
  return result;
}

Value OfIntegers(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) FailOverflow();
      return result;
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) FailOverflow();
      return result;
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) FailOverflow();
      return result;
    case Operator::kDivide:
      if (b == 0) Fail("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case Operator::kFloorDivide:
      return FloorDivide(a, b);
    case Operator::kModulo:
      return b == -1 ? 0 : a - FloorDivide(a, b) * b;
    case Operator::kPower:
      if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
      return Power(a, b);
  }
  return result;
}

Value OfNumbers(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return a + b;
    case Operator::kSubtract:
      return a - b;
    case Operator::kMultiply:
      return a * b;
    case Operator::kPower:
      return std::pow(a, b);
    default:
      break;
  }
  if (b == 0) Fail("division by zero");
  if (op == Operator::kDivide) return a / b;
  if (op == Operator::kFloorDivide) return std::floor(a / b);
  const double remainder = std::fmod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

// A text or list, `times` over; Undefined when `sequence` is neither.
Value Repeat(Runtime& runtime, const Value& sequence, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  const auto charge = [&](std::size_t size) {
    if (size != 0 && count > runtime.options().limits.work / size) {
      Fail("a repetition is too large ({} times)", times);
    }
    runtime.Charge(size * count);
  };
  if (const std::string* text = AsText(sequence)) {
    charge(text->size());
    std::string out;
    for (std::size_t i = 0; i < count && !text->empty(); ++i) out += *text;
    return runtime.MakeText(std::move(out));
  }
  const List* list = AsList(sequence);
  if (list == nullptr || list->kind > List::kTuple) return Value();
  charge(list->items.size() * sizeof(Value));
  std::vector<Value> items;
  for (std::size_t i = 0; i < count && !list->items.empty(); ++i) {
    items.insert(items.end(), list->items.begin(), list->items.end());
  }
  return runtime.NewList(std::move(items), list->kind);
}

}  // namespace

Value Arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  if (const auto* undefined = std::get_if<Undefined>(&a)) FailUndefined(*undefined);
  if (op == Operator::kModulo && AsText(a) != nullptr) return FormatPercent(runtime, *AsText(a), b);
  if (const auto* undefined = std::get_if<Undefined>(&b)) FailUndefined(*undefined);
  const auto left = AsInteger(a);
  const auto right = AsInteger(b);
  if (left && right) return OfIntegers(op, *left, *right);
  if (AsNumber(a) && AsNumber(b)) return OfNumbers(op, *AsNumber(a), *AsNumber(b));
  if (op == Operator::kAdd) {
    if (AsText(a) != nullptr && AsText(b) != nullptr) {
      return runtime.MakeText(*AsText(a) + *AsText(b));
    }
    const List* first = AsList(a);
    const List* second = AsList(b);
    if (first != nullptr && second != nullptr && first->kind == second->kind &&
        first->kind <= List::kTuple) {
      std::vector<Value> items = first->items;
      items.insert(items.end(), second->items.begin(), second->items.end());
      return runtime.NewList(std::move(items), first->kind);
    }
  }
  if (op == Operator::kMultiply && (left || right)) {
    Value repeated = right ? Repeat(runtime, a, *right) : Repeat(runtime, b, *left);
    if (!IsUndefined(repeated)) return repeated;
  }
  Fail("'{}' {} '{}' is not possible", TypeName(a), kSymbols[static_cast<std::size_t>(op)],
       TypeName(b));
}

Value Negate(const Value& value) {
  if (const auto* undefined = std::get_if<Undefined>(&value)) FailUndefined(*undefined);
  if (const auto integer = AsInteger(value)) return OfIntegers(Operator::kSubtract, 0, *integer);
  if (const auto number = AsNumber(value)) return -*number;
  Fail("the negative of '{}' does not exist", TypeName(value));
}

}  // namespace qlora::jinja
