// Elements of texts, lists and dicts: all of them, by key, by attribute and by slice.
#include <algorithm>

#include "base/text.h"
#include "jinja/functions/call.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

// A method as a value (methods.cc).
Value BoundMethod(Runtime& runtime, const Value& object, const Function& method) {
  if (method.run == nullptr) return Undefined{method.name};
  return runtime.New(Callable{BoundFunction{&method, object}});
}

// Character `index` of a text, or undefined.
Value CharacterAt(Runtime& runtime, const Value& object, std::int64_t index) {
  const std::string& text = *AsText(object);
  runtime.Charge(text.size());
  const std::int64_t size = CountCharacters(text);
  const std::int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) return Undefined();
  const std::size_t begin = ByteOffset(text, at);
  return runtime.NewTextLike(object, text.substr(begin, Utf8Length(text[begin])));
}

// object[key] without the methods; undefined where there is nothing.
Value Element(Runtime& runtime, const Value& object, const Value& key) {
  if (Dict* dict = AsDict(object)) {
    const Value* value = Find(runtime, *dict, key);
    return value == nullptr ? Value() : *value;
  }
  Namespace* const* space = std::get_if<Namespace*>(&object);
  if (space != nullptr && AsText(key) != nullptr) {
    const Value* value = FindName(runtime, (*space)->values, *AsText(key));
    return value == nullptr ? Value() : *value;
  }
  const auto index = AsInteger(key);
  if (!index) return Undefined();
  if (AsText(object) != nullptr) return CharacterAt(runtime, object, *index);
  const List* list = AsList(object);
  if (list == nullptr || !list->IsIndexed()) return Undefined();
  const std::int64_t at = *index < 0 ? *index + std::ssize(list->items) : *index;
  return at >= 0 && at < std::ssize(list->items) ? list->items[at] : Value();
}

// The places that [begin:end:step] visits of `length` elements: begin, begin + step ... before end.
// Bounds below zero count from the end; a negative step walks from the last element to the first:
//   "abcde"[1:-1] -> b c d      "abcde"[::-2] -> e c a
struct Walk {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t step;

  bool Visits(std::int64_t i) const { return step > 0 ? i < end : i > end; }
};
Walk PlanWalk(const Value& begin, const Value& end, const Value& step_value, std::int64_t length) {
  const auto is_given = [](const Value& v) { return !IsNone(v) && !IsUndefined(v); };
  constexpr std::int64_t kMaxStep = std::int64_t{1} << 40;  // more than any length
  std::int64_t step = is_given(step_value) ? NeedInteger(step_value, "a slice step") : 1;
  step = std::clamp(step, -kMaxStep, kMaxStep);
  if (step == 0) Fail("a slice step is zero");
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? length : length - 1;
  const auto place = [&](const Value& bound, std::int64_t otherwise) {
    if (!is_given(bound)) return otherwise;
    const std::int64_t index = NeedInteger(bound, "a slice bound");
    return index < 0 ? std::max(index + length, low) : std::min(index, high);
  };
  return {place(begin, step > 0 ? low : high), place(end, step > 0 ? high : low), step};
}

}  // namespace

// Copies the elements, since a generator gives them away. A dict gives its keys, a text its
// characters, an undefined value nothing.
std::vector<Value> Elements(Runtime& runtime, const Value& value) {
  std::vector<Value> items;
  if (List* list = AsList(value)) {
    runtime.Charge(list->items.size() * sizeof(Value));
    if (list->kind == List::kGenerator) return std::exchange(list->items, {});
    return list->items;
  }
  if (const Dict* dict = AsDict(value)) {
    runtime.Charge(dict->items.size() * sizeof(Value));
    for (const auto& item : dict->items) items.push_back(item.first);
    return items;
  }
  if (const std::string* text = AsText(value)) {
    for (std::size_t at = 0; at < text->size();) {
      const int length = Utf8Length((*text)[at]);
      items.push_back(runtime.NewText(text->substr(at, length)));
      at += length;
    }
    return items;
  }
  if (runtime.is_strict()) NeedDefined(value);
  if (!IsUndefined(value)) Fail("'{}' cannot be iterated over", TypeName(value));
  return items;
}

// Counts the characters of a text from its bytes, each time; the work is charged to the budget.
std::int64_t Length(Runtime& runtime, const Value& value) {
  if (const std::string* text = AsText(value)) {
    runtime.Charge(text->size());
    return CountCharacters(*text);
  }
  if (const Dict* dict = AsDict(value)) return std::ssize(dict->items);
  const List* list = AsList(value);
  if (list != nullptr && list->kind != List::kGenerator) return std::ssize(list->items);
  if (!IsUndefined(value)) Fail("'{}' has no length", TypeName(value));
  return 0;
}

// A dict is searched from its front, since dicts of templates are small. Only names of the same
// length are compared, and paid for.
Value* FindName(Runtime& runtime, Dict& dict, std::string_view name) {
  constexpr std::size_t kKeyWork = 8;
  runtime.Charge(dict.items.size() + 1, kKeyWork);
  for (auto& [key, value] : dict.items) {
    const std::string* text = AsText(key);
    if (text == nullptr || text->size() != name.size()) continue;
    runtime.Charge(name.size());
    if (*text == name) return &value;
  }
  return nullptr;
}

// Python's dict needs keys that cannot change: no list or dict.
Value* Find(Runtime& runtime, Dict& dict, const Value& key) {
  if (const std::string* name = AsText(key)) return FindName(runtime, dict, *name);
  const List* list = AsList(key);
  if (AsDict(key) != nullptr || (list != nullptr && list->kind != List::kTuple)) {
    Fail("'{}' cannot be the key of a dict", TypeName(key));
  }
  const auto found = std::ranges::find_if(
      dict.items, [&](const auto& item) { return Equal(runtime, item.first, key); });
  return found == dict.items.end() ? nullptr : &found->second;
}

void Insert(Runtime& runtime, Dict& dict, const Value& key, Value value) {
  if (Value* place = Find(runtime, dict, key)) {
    *place = std::move(value);
  } else {
    runtime.Charge(sizeof(dict.items[0]));
    dict.items.emplace_back(key, std::move(value));
  }
}

// Python finds a method before an element: {"items": 1}.items is the method.
Value Attribute(Runtime& runtime, const Value& object, std::string_view name) {
  NeedDefined(object);
  if (const Function* method = FindMethod(object, name)) {
    return BoundMethod(runtime, object, *method);
  }
  Namespace* const* space = std::get_if<Namespace*>(&object);
  Dict* dict = space != nullptr ? &(*space)->values : AsDict(object);
  const Value* value = dict == nullptr ? nullptr : FindName(runtime, *dict, name);
  return value == nullptr ? Value(Undefined{name}) : *value;
}

// Python's [] finds an element before a method: {"items": 1}["items"] is 1.
Value Item(Runtime& runtime, const Value& object, const Value& key) {
  NeedDefined(object);
  Value value = Element(runtime, object, key);
  if (!IsUndefined(value) || AsText(key) == nullptr) return value;
  const Function* method = FindMethod(object, *AsText(key));
  return method == nullptr ? Value() : BoundMethod(runtime, object, *method);
}

// A slice of a text with step 1 is one piece of its bytes; other steps collect characters.
Value Slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step) {
  NeedDefined(object);
  const std::string* text = AsText(object);
  const List* list = AsList(object);
  if (text == nullptr && (list == nullptr || !list->IsIndexed())) {
    Fail("'{}' cannot be sliced", TypeName(object));
  }
  const Walk walk = PlanWalk(begin, end, step, Length(runtime, object));
  if (text != nullptr && walk.step == 1) {
    const std::size_t from = ByteOffset(*text, walk.begin);
    const std::size_t to = std::max(from, ByteOffset(*text, walk.end));
    return runtime.NewTextLike(object, text->substr(from, to - from));
  }
  const std::vector<Value> elements = Elements(runtime, object);
  std::vector<Value> items;
  std::string characters;
  for (std::int64_t i = walk.begin; walk.Visits(i); i += walk.step) {
    text != nullptr ? AppendStr(runtime, elements[i], characters) : items.push_back(elements[i]);
  }
  if (text != nullptr) return runtime.NewTextLike(object, std::move(characters));
  return runtime.NewList(std::move(items), list->kind);
}

}  // namespace qlora::jinja
