#include "jinja/value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

using Json = nlohmann::ordered_json;

bool IsNumber(const Value& value) { return AsNumber(value).has_value(); }

std::partial_ordering CompareNumbers(const Value& a, const Value& b) {
  const auto left = AsInteger(a);
  const auto right = AsInteger(b);
  if (left && right) return *left <=> *right;
  return *AsNumber(a) <=> *AsNumber(b);
}

// Whether a sequence compares with another: lists with lists, tuples with tuples.
bool SameSequence(const List* a, const List* b) {
  const auto is_plain = [](const List* l) { return l->kind != List::kGenerator; };
  return a != nullptr && b != nullptr && a->kind == b->kind && is_plain(a);
}

// Where Python's slice(begin, end, step) over `length` elements starts and stops.
struct Bounds {
  std::int64_t begin;
  std::int64_t end;
};
Bounds SliceBounds(const Value& begin, const Value& end, std::int64_t step, std::int64_t length) {
  const auto is_given = [](const Value& v) { return !IsNone(v) && !IsUndefined(v); };
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? length : length - 1;
  const auto place = [&](const Value& value) {
    const std::int64_t index = NeedInteger(value, "a slice bound");
    return index < 0 ? std::max(index + length, low) : std::min(index, high);
  };
  return {is_given(begin) ? place(begin) : (step > 0 ? low : high),
          is_given(end) ? place(end) : (step > 0 ? high : low)};
}

void AppendSequence(Runtime& runtime, const std::vector<Value>& items, std::string& out) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    AppendRepr(runtime, items[i], out);
  }
}

Value ElementOf(Runtime& runtime, const Value& object, const Value& key) {
  const auto index = AsInteger(key);
  if (Dict* dict = AsDict(object)) {
    const Value* value = Find(runtime, *dict, key);
    return value == nullptr ? Value() : *value;
  }
  if (const List* list = AsList(object); list != nullptr && index) {
    const auto size = static_cast<std::int64_t>(list->items.size());
    const bool indexed = list->kind != List::kView && list->kind != List::kGenerator;
    const std::int64_t at = *index < 0 ? *index + size : *index;
    if (indexed && at >= 0 && at < size) return list->items[at];
  }
  if (const std::string* text = AsText(object); text != nullptr && index) {
    runtime.Charge(text->size());
    const std::int64_t size = CountCharacters(*text);
    const std::int64_t at = *index < 0 ? *index + size : *index;
    if (at >= 0 && at < size) {
      const std::size_t begin = ByteOffset(*text, at);
      return runtime.MakeText(
          text->substr(begin, static_cast<std::size_t>(Utf8Length((*text)[begin]))));
    }
  }
  return Value();
}

}  // namespace

std::optional<std::int64_t> AsInteger(const Value& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? 1 : 0;
  return std::nullopt;
}

std::optional<double> AsNumber(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto integer = AsInteger(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

std::string_view TypeName(const Value& value) {
  constexpr std::array<std::string_view, 11> kNames = {"Undefined", "NoneType", "bool",    "int",
                                                       "float",     "str",      "list",    "dict",
                                                       "Namespace", "loop",     "function"};
  constexpr std::array<std::string_view, 5> kListNames = {"list", "tuple", "range", "view",
                                                          "generator"};
  if (const List* list = AsList(value)) return kListNames[list->kind];
  return kNames[value.index()];
}

void FailUndefined(const Undefined& value) {
  if (value.name.empty()) Fail("an element that does not exist is used");
  Fail("'{}' is undefined", value.name);
}

const std::string& NeedText(const Value& value, std::string_view what) {
  const std::string* text = AsText(value);
  if (text == nullptr) Fail("{}: expected str, found {}", what, TypeName(value));
  return *text;
}

std::int64_t NeedInteger(const Value& value, std::string_view what) {
  const auto integer = AsInteger(value);
  if (!integer) Fail("{}: expected int, found {}", what, TypeName(value));
  return *integer;
}

std::vector<std::optional<Value>> Bind(std::string_view callee, Arguments arguments,
                                       std::initializer_list<std::string_view> names,
                                       std::size_t required) {
  std::vector<std::optional<Value>> bound(names.size());
  if (arguments.positional.size() > names.size()) {
    Fail("{} takes at most {} arguments, found {}", callee, names.size(),
         arguments.positional.size());
  }
  std::move(arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (auto& [name, value] : arguments.named) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) Fail("{} has no argument '{}'", callee, name);
    auto& place = bound[at - names.begin()];
    if (place) Fail("{}: argument '{}' is given twice", callee, name);
    place = std::move(value);
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!bound[i]) Fail("{}: argument '{}' is missing", callee, names.begin()[i]);
  }
  return bound;
}

Value FromJson(Runtime& runtime, const Json& json) {
  const Runtime::Level level(runtime);
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > INT64_MAX) Fail("the number {} is too large", number);
      return static_cast<std::int64_t>(number);
    }
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string: {
      std::string storage;
      return runtime.MakeText(std::string(ValidUtf8(json.get_ref<const std::string&>(), &storage)));
    }
    case Json::value_t::array: {
      List* list = runtime.NewList();
      for (const Json& item : json) list->items.push_back(FromJson(runtime, item));
      runtime.Charge(list->items.size() * sizeof(Value));
      return list;
    }
    case Json::value_t::object: {
      Dict* dict = runtime.NewDict();
      for (const auto& [key, item] : json.items()) {
        dict->items.emplace_back(runtime.MakeText(key), FromJson(runtime, item));
      }
      return dict;
    }
    default:
      return None();
  }
}

bool Truth(const Value& value) {
  if (const std::string* text = AsText(value)) return !text->empty();
  if (const Dict* dict = AsDict(value)) return !dict->items.empty();
  if (const List* list = AsList(value)) {
    return list->kind == List::kGenerator || !list->items.empty();
  }
  if (const auto number = AsNumber(value)) return *number != 0;
  return !IsUndefined(value) && !IsNone(value);
}

bool Equal(Runtime& runtime, const Value& a, const Value& b) {
  const Runtime::Level level(runtime);
  runtime.Charge(1);
  if (IsNumber(a) && IsNumber(b)) return CompareNumbers(a, b) == 0;
  if (a.index() != b.index()) return false;
  if (const std::string* text = AsText(a)) {
    runtime.Charge(text->size());
    return *text == *AsText(b);
  }
  if (SameSequence(AsList(a), AsList(b))) {
    const auto& left = AsList(a)->items;
    const auto& right = AsList(b)->items;
    return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [&](const Value& x, const Value& y) { return Equal(runtime, x, y); });
  }
  if (Dict* left = AsDict(a)) {
    Dict* right = AsDict(b);
    return left->items.size() == right->items.size() &&
           std::all_of(left->items.begin(), left->items.end(), [&](const auto& item) {
             const Value* other = Find(runtime, *right, item.first);
             return other != nullptr && Equal(runtime, item.second, *other);
           });
  }
  if (const auto* object = std::get_if<List*>(&a)) return *object == std::get<List*>(b);
  if (const auto* object = std::get_if<Namespace*>(&a)) return *object == std::get<Namespace*>(b);
  if (const auto* object = std::get_if<Loop*>(&a)) return *object == std::get<Loop*>(b);
  if (const auto* object = std::get_if<Callable*>(&a)) return *object == std::get<Callable*>(b);
  return true;  // None, undefined
}

std::partial_ordering Compare(Runtime& runtime, const Value& a, const Value& b) {
  const Runtime::Level level(runtime);
  runtime.Charge(1);
  if (IsNumber(a) && IsNumber(b)) return CompareNumbers(a, b);
  if (AsText(a) != nullptr && AsText(b) != nullptr) {
    runtime.Charge(std::min(AsText(a)->size(), AsText(b)->size()));
    return AsText(a)->compare(*AsText(b)) <=> 0;  // order of UTF-8 is order of characters
  }
  if (const auto* undefined = std::get_if<Undefined>(&a)) FailUndefined(*undefined);
  if (const auto* undefined = std::get_if<Undefined>(&b)) FailUndefined(*undefined);
  if (!SameSequence(AsList(a), AsList(b)) || AsList(a)->kind > List::kTuple) {
    Fail("'{}' and '{}' have no order", TypeName(a), TypeName(b));
  }
  const auto& left = AsList(a)->items;
  const auto& right = AsList(b)->items;
  for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (!Equal(runtime, left[i], right[i])) return Compare(runtime, left[i], right[i]);
  }
  return left.size() <=> right.size();
}

bool Contains(Runtime& runtime, const Value& container, const Value& item) {
  if (const std::string* text = AsText(container)) {
    runtime.Charge(text->size());
    return text->find(NeedText(item, "'in' of a str")) != std::string::npos;
  }
  if (Dict* dict = AsDict(container)) return Find(runtime, *dict, item) != nullptr;
  const std::vector<Value> items = Elements(runtime, container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& other) { return Equal(runtime, other, item); });
}

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
    runtime.Charge(text->size());
    for (std::size_t at = 0; at < text->size();) {
      const auto length = static_cast<std::size_t>(Utf8Length((*text)[at]));
      items.push_back(runtime.MakeText(text->substr(at, length)));
      at += length;
    }
    return items;
  }
  if (!IsUndefined(value)) Fail("'{}' cannot be iterated over", TypeName(value));
  return items;
}

std::int64_t Length(Runtime& runtime, const Value& value) {
  if (const std::string* text = AsText(value)) {
    runtime.Charge(text->size());
    return CountCharacters(*text);
  }
  if (const Dict* dict = AsDict(value)) return static_cast<std::int64_t>(dict->items.size());
  if (const List* list = AsList(value); list != nullptr && list->kind != List::kGenerator) {
    return static_cast<std::int64_t>(list->items.size());
  }
  if (!IsUndefined(value)) Fail("'{}' has no length", TypeName(value));
  return 0;
}

Value* Find(Runtime& runtime, Dict& dict, const Value& key) {
  runtime.Charge(dict.items.size() + 1);
  if (const std::string* text = AsText(key)) return Find(dict, *text);
  if (AsDict(key) != nullptr || AsList(key) != nullptr) {
    if (AsDict(key) != nullptr || AsList(key)->kind != List::kTuple) {
      Fail("'{}' cannot be the key of a dict", TypeName(key));
    }
  }
  for (auto& [name, value] : dict.items) {
    if (Equal(runtime, name, key)) return &value;
  }
  return nullptr;
}

Value* Find(Dict& dict, std::string_view key) {
  for (auto& [name, value] : dict.items) {
    const std::string* text = AsText(name);
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

void Insert(Runtime& runtime, Dict& dict, const Value& key, Value value) {
  if (Value* place = Find(runtime, dict, key)) {
    *place = std::move(value);
  } else {
    runtime.Charge(sizeof(dict.items[0]));
    dict.items.emplace_back(key, std::move(value));
  }
}

Value Attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (const auto* undefined = std::get_if<Undefined>(&object)) FailUndefined(*undefined);
  if (HasMethod(object, name)) return runtime.NewCallable({BoundMethod{object, name}});
  if (Namespace* const* space = std::get_if<Namespace*>(&object)) {
    for (const auto& [key, value] : (*space)->items) {
      if (key == name) return value;
    }
  }
  if (Dict* dict = AsDict(object)) {
    runtime.Charge(dict->items.size());
    if (const Value* value = Find(*dict, name)) return *value;
  }
  return Undefined{name};
}

Value Item(Runtime& runtime, const Value& object, const Value& key, std::string_view name) {
  if (const auto* undefined = std::get_if<Undefined>(&object)) FailUndefined(*undefined);
  Value value = ElementOf(runtime, object, key);
  if (!IsUndefined(value)) return value;
  if (!name.empty() && HasMethod(object, name)) return Attribute(runtime, object, name);
  return Undefined{name};
}

Value Slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step_value) {
  if (const auto* undefined = std::get_if<Undefined>(&object)) FailUndefined(*undefined);
  const bool is_stepped = !IsNone(step_value) && !IsUndefined(step_value);
  constexpr std::int64_t kMaxStep = std::int64_t{1} << 40;  // more than any length
  const std::int64_t step =
      is_stepped ? std::clamp(NeedInteger(step_value, "a slice step"), -kMaxStep, kMaxStep) : 1;
  if (step == 0) Fail("a slice step is zero");
  if (const std::string* text = AsText(object)) {
    runtime.Charge(text->size());
    const Bounds bounds = SliceBounds(begin, end, step, CountCharacters(*text));
    if (step == 1) {
      const std::size_t from = ByteOffset(*text, bounds.begin);
      const std::size_t to = std::max(from, ByteOffset(*text, bounds.end));
      return runtime.MakeText(text->substr(from, to - from));
    }
    std::string out;
    const std::vector<Value> characters = Elements(runtime, object);
    for (std::int64_t i = bounds.begin; step > 0 ? i < bounds.end : i > bounds.end; i += step) {
      out += *AsText(characters[i]);
    }
    return runtime.MakeText(std::move(out));
  }
  const List* list = AsList(object);
  if (list == nullptr || list->kind == List::kView || list->kind == List::kGenerator) {
    return Undefined{"slice"};
  }
  const Bounds bounds =
      SliceBounds(begin, end, step, static_cast<std::int64_t>(list->items.size()));
  std::vector<Value> items;
  for (std::int64_t i = bounds.begin; step > 0 ? i < bounds.end : i > bounds.end; i += step) {
    items.push_back(list->items[i]);
  }
  return runtime.NewList(std::move(items), list->kind);
}

std::string Str(Runtime& runtime, const Value& value) {
  std::string out;
  AppendStr(runtime, value, out);
  return out;
}

void AppendStr(Runtime& runtime, const Value& value, std::string& out) {
  if (const std::string* text = AsText(value)) {
    runtime.Charge(text->size());
    out += *text;
  } else if (!IsUndefined(value)) {
    AppendRepr(runtime, value, out);
  }
}

void AppendRepr(Runtime& runtime, const Value& value, std::string& out) {
  const Runtime::Level level(runtime);
  runtime.Charge(1);
  if (const std::string* text = AsText(value)) {
    runtime.Charge(text->size());
    out += Repr(*text);
  } else if (const bool* boolean = std::get_if<bool>(&value)) {
    out += *boolean ? "True" : "False";
  } else if (const auto integer = AsInteger(value)) {
    out += std::to_string(*integer);
  } else if (const double* number = std::get_if<double>(&value)) {
    out += FloatRepr(*number);
  } else if (IsNone(value)) {
    out += "None";
  } else if (IsUndefined(value)) {
    out += "Undefined";
  } else if (const List* list = AsList(value); list != nullptr && list->kind <= List::kTuple) {
    const bool is_list = list->kind == List::kList;
    out += is_list ? '[' : '(';
    AppendSequence(runtime, list->items, out);
    if (!is_list && list->items.size() == 1) out += ',';
    out += is_list ? ']' : ')';
  } else if (const Dict* dict = AsDict(value)) {
    out += '{';
    for (std::size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out += ", ";
      AppendRepr(runtime, dict->items[i].first, out);
      out += ": ";
      AppendRepr(runtime, dict->items[i].second, out);
    }
    out += '}';
  } else {
    Fail("a {} cannot be shown as text", TypeName(value));
  }
}

}  // namespace qlora::jinja
