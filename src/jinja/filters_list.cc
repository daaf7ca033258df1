// The filters of a template that take sequences and dicts.
#include <algorithm>
#include <charconv>

#include "jinja/filters.h"
#include "jinja/python_str.h"

namespace qlora::jinja {
namespace {

// What an attribute argument such as "function.name" or 0 finds in an item; the item itself when
// there is none.
Value Lookup(Runtime& runtime, const Value& item, const std::optional<Value>& attribute) {
  if (!IsGiven(attribute)) return item;
  const std::string* path = AsText(*attribute);
  if (path == nullptr) return Item(runtime, item, *attribute);
  Value value = item;
  for (const std::string_view part : SplitAt(*path, ".", -1)) {
    std::int64_t index = 0;
    const auto result = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = result.ec == std::errc() && result.ptr == part.data() + part.size();
    const Value key = is_index ? Value(index) : runtime.MakeText(std::string(part));
    value = Item(runtime, value, key);
  }
  return value;
}

// A key for sorting and comparing: texts in lower case unless case counts.
Value SortKey(Runtime& runtime, const Value& value, bool case_sensitive) {
  const std::string* text = AsText(value);
  if (text == nullptr || case_sensitive) return value;
  return runtime.MakeText(Lower(*text));
}

bool IsTrue(const std::optional<Value>& value) { return value && Truth(*value); }

std::vector<Value> SortedBy(Runtime& runtime, const std::vector<Value>& items,
                            const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto compared = Compare(runtime, keys[a], keys[b]);
    return reverse ? compared > 0 : compared < 0;
  });
  std::vector<Value> sorted;
  for (const std::size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value Sort(FilterCall& call) {
  const auto args = call.Take({"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = Elements(call.runtime, call.value);
  std::vector<std::string_view> attributes;
  if (args[2] && AsText(*args[2]) != nullptr) attributes = SplitAt(*AsText(*args[2]), ",", -1);
  std::vector<Value> keys;
  for (const Value& item : items) {
    if (attributes.size() < 2) {
      keys.push_back(SortKey(call.runtime, Lookup(call.runtime, item, args[2]), IsTrue(args[1])));
      continue;
    }
    std::vector<Value> parts;
    for (const std::string_view attribute : attributes) {
      const Value name = call.runtime.MakeText(std::string(attribute));
      parts.push_back(SortKey(call.runtime, Lookup(call.runtime, item, name), IsTrue(args[1])));
    }
    keys.push_back(call.runtime.NewList(std::move(parts)));
  }
  return call.runtime.NewList(SortedBy(call.runtime, items, keys, IsTrue(args[0])));
}

std::vector<Value> Pairs(Runtime& runtime, const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.items) {
    pairs.push_back(runtime.NewList({key, value}, List::kTuple));
  }
  return pairs;
}

const Dict& NeedDict(const FilterCall& call) {
  const Dict* dict = AsDict(call.value);
  if (dict == nullptr) Fail("{}: expected dict, found {}", call.name, TypeName(call.value));
  return *dict;
}

Value DictSort(FilterCall& call) {
  const auto args = call.Take({"case_sensitive", "by", "reverse"});
  const std::string by = args[1] ? NeedText(*args[1], call.name) : "key";
  if (by != "key" && by != "value") Fail("dictsort: expected key or value, found '{}'", by);
  std::vector<Value> keys;
  for (const auto& [key, value] : NeedDict(call).items) {
    keys.push_back(SortKey(call.runtime, by == "key" ? key : value, IsTrue(args[0])));
  }
  return call.runtime.NewList(
      SortedBy(call.runtime, Pairs(call.runtime, NeedDict(call)), keys, IsTrue(args[2])));
}

Value ItemsFilter(FilterCall& call) {
  call.Take({});
  if (IsUndefined(call.value)) return call.runtime.NewList({}, List::kGenerator);
  return call.runtime.NewList(Pairs(call.runtime, NeedDict(call)), List::kGenerator);
}

Value Unique(FilterCall& call) {
  const auto args = call.Take({"case_sensitive", "attribute"});
  std::vector<Value> kept;
  std::vector<Value> keys;
  for (const Value& item : Elements(call.runtime, call.value)) {
    Value key = SortKey(call.runtime, Lookup(call.runtime, item, args[1]), IsTrue(args[0]));
    const bool seen = std::any_of(keys.begin(), keys.end(), [&](const Value& other) {
      return Equal(call.runtime, key, other);
    });
    if (seen) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return call.runtime.NewList(std::move(kept), List::kGenerator);
}

template <bool kMax>
Value Extreme(FilterCall& call) {
  const auto args = call.Take({"case_sensitive", "attribute"});
  Value best;
  Value best_key;
  bool first = true;
  for (const Value& item : Elements(call.runtime, call.value)) {
    Value key = SortKey(call.runtime, Lookup(call.runtime, item, args[1]), IsTrue(args[0]));
    if (!first) {
      const auto order = Compare(call.runtime, key, best_key);
      if (kMax ? !(order > 0) : !(order < 0)) continue;
    }
    first = false;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

Value Sum(FilterCall& call) {
  const auto args = call.Take({"attribute", "start"});
  Value sum = args[1].value_or(std::int64_t{0});
  for (const Value& item : Elements(call.runtime, call.value)) {
    sum = Arithmetic(call.runtime, Operator::kAdd, sum, Lookup(call.runtime, item, args[0]));
  }
  return sum;
}

Value Join(FilterCall& call) {
  const auto args = call.Take({"d", "attribute"});
  const std::string separator = args[0] ? Str(call.runtime, *args[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : Elements(call.runtime, call.value)) {
    if (!first) out += separator;
    first = false;
    call.runtime.Charge(separator.size());
    AppendStr(call.runtime, Lookup(call.runtime, item, args[1]), out);
  }
  return call.runtime.MakeText(std::move(out));
}

Value FirstItem(FilterCall& call) {
  call.Take({});
  if (List* list = AsList(call.value); list != nullptr && list->kind == List::kGenerator) {
    if (list->items.empty()) return Value();
    Value item = std::move(list->items.front());
    list->items.erase(list->items.begin());
    return item;
  }
  const std::vector<Value> items = Elements(call.runtime, call.value);
  return items.empty() ? Value() : items.front();
}

Value LastItem(FilterCall& call) {
  call.Take({});
  const List* list = AsList(call.value);
  if (list != nullptr && list->kind == List::kGenerator) Fail("last: a generator has no last item");
  const std::vector<Value> items = Elements(call.runtime, call.value);
  return items.empty() ? Value() : items.back();
}

Value Reverse(FilterCall& call) {
  call.Take({});
  std::vector<Value> items = Elements(call.runtime, call.value);
  std::reverse(items.begin(), items.end());
  if (AsText(call.value) == nullptr) {
    return call.runtime.NewList(std::move(items), List::kGenerator);
  }
  std::string out;
  for (const Value& item : items) out += *AsText(item);
  return call.runtime.MakeText(std::move(out));
}

Value ListFilter(FilterCall& call) {
  call.Take({});
  return call.runtime.NewList(Elements(call.runtime, call.value));
}

Value Map(FilterCall& call) {
  std::vector<Value> mapped;
  if (!Truth(call.value)) return call.runtime.NewList({}, List::kGenerator);
  if (call.arguments.positional.empty()) {
    const auto args = call.Take({"attribute", "default"}, 1);
    for (const Value& item : Elements(call.runtime, call.value)) {
      Value found = Lookup(call.runtime, item, args[0]);
      mapped.push_back(IsUndefined(found) && IsGiven(args[1]) ? *args[1] : std::move(found));
    }
  } else {
    const std::string filter = NeedText(call.arguments.positional.front(), call.name);
    Arguments arguments = std::move(call.arguments);
    arguments.positional.erase(arguments.positional.begin());
    const Runtime::Level level(call.runtime);
    for (const Value& item : Elements(call.runtime, call.value)) {
      mapped.push_back(ApplyFilter(call.runtime, filter, item, arguments));
    }
  }
  return call.runtime.NewList(std::move(mapped), List::kGenerator);
}

template <bool kByAttribute, bool kKeep>
Value SelectItems(FilterCall& call) {
  if (!Truth(call.value)) return call.runtime.NewList({}, List::kGenerator);
  Arguments arguments = std::move(call.arguments);
  const auto take = [&]() -> std::optional<Value> {
    if (arguments.positional.empty()) return std::nullopt;
    Value value = std::move(arguments.positional.front());
    arguments.positional.erase(arguments.positional.begin());
    return value;
  };
  std::optional<Value> attribute;
  if (kByAttribute && !(attribute = take())) Fail("{}: the attribute is missing", call.name);
  const std::optional<Value> test = take();
  std::vector<Value> kept;
  for (const Value& item : Elements(call.runtime, call.value)) {
    const Value value = Lookup(call.runtime, item, attribute);
    const bool holds =
        test ? ApplyTest(call.runtime, NeedText(*test, call.name), value, arguments) : Truth(value);
    if (holds == kKeep) kept.push_back(item);
  }
  return call.runtime.NewList(std::move(kept), List::kGenerator);
}

Value LengthFilter(FilterCall& call) {
  call.Take({});
  return Length(call.runtime, call.value);
}

constexpr FilterEntry kListFilters[] = {
    {"count", LengthFilter},
    {"dictsort", DictSort},
    {"first", FirstItem},
    {"items", ItemsFilter},
    {"join", Join},
    {"last", LastItem},
    {"length", LengthFilter},
    {"list", ListFilter},
    {"map", Map},
    {"max", Extreme<true>},
    {"min", Extreme<false>},
    {"reject", SelectItems<false, false>},
    {"rejectattr", SelectItems<true, false>},
    {"reverse", Reverse},
    {"select", SelectItems<false, true>},
    {"selectattr", SelectItems<true, true>},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

std::span<const FilterEntry> ListFilters() { return kListFilters; }

}  // namespace qlora::jinja
