// Truth, equality and order of a template's values. Values may be nested, so each level is counted
// and each pair that is compared is paid for.
#include <algorithm>

#include "jinja/operations.h"
#include "jinja/python_str.h"

namespace qlora::jinja {
namespace {

bool IsWhole(const Value& value) {
  return AsInteger(value).has_value() || std::holds_alternative<WideInteger>(value);
}

std::string DigitsOf(const Value& whole) {
  const auto* wide = std::get_if<WideInteger>(&whole);
  return wide != nullptr ? *wide->digits : std::to_string(*AsInteger(whole));
}

std::partial_ordering OrderDigits(std::string_view a, std::string_view b) {
  const bool negative = a.starts_with('-');
  if (negative != b.starts_with('-')) return negative ? -1 <=> 0 : 0 <=> -1;
  const auto order = a.size() != b.size() ? a.size() <=> b.size() : a.compare(b) <=> 0;
  return negative ? 0 <=> order : order;
}

// Compares integers as integers, since a double cannot hold every integer of 64 bits. NaN has no
// order with any number.
std::partial_ordering OrderNumbers(const Value& a, const Value& b) {
  const auto left = AsInteger(a);
  const auto right = AsInteger(b);
  if (left && right) return *left <=> *right;
  if (IsWhole(a) && IsWhole(b)) return OrderDigits(DigitsOf(a), DigitsOf(b));
  return *AsNumber(a) <=> *AsNumber(b);
}

bool AreNumbers(const Value& a, const Value& b) { return AsNumber(a) && AsNumber(b); }

// Dicts with the same items in another order are equal.
bool EqualDicts(Runtime& runtime, const Dict& a, Dict& b) {
  return a.items.size() == b.items.size() && std::ranges::all_of(a.items, [&](const auto& item) {
           const Value* other = Find(runtime, b, item.first);
           return other != nullptr && Equal(runtime, item.second, *other);
         });
}

}  // namespace

// False are empty texts and containers, 0, None, false and undefined. A generator is always true,
// since Python does not look into it.
bool Truth(const Value& value) {
  if (const std::string* text = AsText(value)) return !text->empty();
  if (const Dict* dict = AsDict(value)) return !dict->items.empty();
  if (const List* list = AsList(value)) {
    return list->kind == List::kGenerator || !list->items.empty();
  }
  if (const auto number = AsNumber(value)) return *number != 0;
  return !IsUndefined(value) && !IsNone(value);
}

bool Truth(const Runtime& runtime, const Value& condition) {
  if (runtime.is_strict()) NeedDefined(condition);
  return Truth(condition);
}

// 1 == 1.0 == true; otherwise values of different types differ. Lists and dicts are equal when
// their elements are, generators, namespaces, loops and functions when they are the same object.
bool Equal(Runtime& runtime, const Value& a, const Value& b) {
  const DepthLevel level = runtime.Enter();
  runtime.Charge(WorkBudget::kStepWork);
  if (AreNumbers(a, b)) return OrderNumbers(a, b) == 0;
  if (a.index() != b.index()) return false;
  if (const std::string* text = AsText(a)) {
    runtime.Charge(text->size());
    return *text == *AsText(b);
  }
  if (const List* left = AsList(a)) {
    const List* right = AsList(b);
    if (left->kind == List::kGenerator || left->kind != right->kind) return left == right;
    return std::equal(left->items.begin(), left->items.end(), right->items.begin(),
                      right->items.end(),
                      [&](const Value& x, const Value& y) { return Equal(runtime, x, y); });
  }
  if (const Dict* dict = AsDict(a)) return EqualDicts(runtime, *dict, *AsDict(b));
  if (const auto* space = std::get_if<Namespace*>(&a)) return *space == std::get<Namespace*>(b);
  if (const auto* loop = std::get_if<Loop*>(&a)) return *loop == std::get<Loop*>(b);
  if (const auto* callable = std::get_if<Callable*>(&a)) return *callable == std::get<Callable*>(b);
  return true;  // two None, or two undefined
}

// The order of two numbers, two texts, two lists or two tuples. Sequences have the order of the
// first elements that differ: [1, 2] < [1, 3, 0].
std::partial_ordering Order(Runtime& runtime, const Value& a, const Value& b) {
  const DepthLevel level = runtime.Enter();
  runtime.Charge(WorkBudget::kStepWork);
  if (AreNumbers(a, b)) return OrderNumbers(a, b);
  if (AsText(a) != nullptr && AsText(b) != nullptr) {
    runtime.Charge(std::min(AsText(a)->size(), AsText(b)->size()));
    return AsText(a)->compare(*AsText(b)) <=> 0;  // order of UTF-8 is order of characters
  }
  NeedDefined(a);
  NeedDefined(b);
  const List* left = AsList(a);
  const List* right = AsList(b);
  if (left != nullptr && right != nullptr && left->IsPlain() && left->kind == right->kind) {
    const auto [x, y] = std::mismatch(
        left->items.begin(), left->items.end(), right->items.begin(), right->items.end(),
        [&](const Value& l, const Value& r) { return Equal(runtime, l, r); });
    if (x != left->items.end() && y != right->items.end()) return Order(runtime, *x, *y);
    return std::ssize(left->items) <=> std::ssize(right->items);
  }
  Fail("the order of '{}' and '{}' is not supported", TypeName(a), TypeName(b));
}

// item in container: a part of a text, a key of a dict, an element of a sequence.
bool Contains(Runtime& runtime, const Value& container, const Value& item) {
  if (const std::string* text = AsText(container)) {
    runtime.Charge(text->size());
    const std::string& part = NeedText(item, "'in' of a str");
    return FindPart(runtime, *text, part) != std::string::npos;
  }
  if (Dict* dict = AsDict(container)) return Find(runtime, *dict, item) != nullptr;
  const std::vector<Value> items = Elements(runtime, container);
  return std::ranges::any_of(items,
                             [&](const Value& other) { return Equal(runtime, other, item); });
}

bool Compare(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return Equal(runtime, a, b);
    case Operator::kNotEqual:
      return !Equal(runtime, a, b);
    case Operator::kIn:
      return Contains(runtime, b, a);
    case Operator::kNotIn:
      return !Contains(runtime, b, a);
    case Operator::kLess:
      return Order(runtime, a, b) < 0;
    case Operator::kLessEqual:
      return Order(runtime, a, b) <= 0;
    case Operator::kGreater:
      return Order(runtime, a, b) > 0;
    default:
      return Order(runtime, a, b) >= 0;
  }
}

}  // namespace qlora::jinja
