// The filters of sequences and dicts. An argument `attribute` names a part of each element, such as
// "function.name"; an index is possible as well.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "jinja/functions/call.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"

namespace qlora::jinja {
namespace {

// The part of `item` that `attribute` names; the item itself for None.
Value PartOf(Runtime& runtime, const Value& item, const Value& attribute) {
  if (IsNone(attribute)) return item;
  const std::string* path = AsText(attribute);
  if (path == nullptr) return Item(runtime, item, attribute);
  Value value = item;
  runtime.Charge(path->size());
  for (const std::string_view name : SplitAt(runtime, *path, ".")) {
    const auto index = ParseNumber<std::int64_t>(name);
    value = Item(runtime, value, index ? Value(*index) : runtime.NewText(std::string(name)));
  }
  return value;
}

// The part that sort, unique, min, max and dictsort compare: a text counts in lower case, unless
// the template asks for case_sensitive=true.
Value SortKey(Runtime& runtime, const Value& item, const Value& attribute, bool case_sensitive) {
  Value part = PartOf(runtime, item, attribute);
  const bool lowers = AsText(part) != nullptr && !case_sensitive;
  return lowers ? ApplyFilter(runtime, "lower", part, {}) : part;
}

// The keys for sorting by several attributes, "name,function.size", are lists.
Value SortKeys(Runtime& runtime, const Value& item, const Value& attributes, bool case_sensitive) {
  const std::string* names = AsText(attributes);
  if (names == nullptr || names->find(',') == std::string::npos) {
    return SortKey(runtime, item, attributes, case_sensitive);
  }
  std::vector<Value> keys;
  runtime.Charge(names->size());
  for (const std::string_view name : SplitAt(runtime, *names, ",")) {
    const Value attribute = runtime.NewText(std::string(name));
    keys.push_back(SortKey(runtime, item, attribute, case_sensitive));
  }
  return runtime.NewList(std::move(keys));
}

// Equal keys keep their order, also in reverse.
Value SortedBy(Runtime& runtime, const std::vector<Value>& items, const Value& attributes,
               bool case_sensitive, bool reverse) {
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(SortKeys(runtime, item, attributes, case_sensitive));
  }
  std::vector<int> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return Compare(runtime, reverse ? Operator::kGreater : Operator::kLess, keys[a], keys[b]);
  });
  std::vector<Value> sorted;
  for (const int i : order) sorted.push_back(items[i]);
  return runtime.NewList(std::move(sorted));
}

Value Sort(Call& call) {
  const BoundArguments args = call.Take({"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = Elements(call.runtime, call.self);
  return SortedBy(call.runtime, items, args.Or(2, None()), args.Flag(1), args.Flag(0));
}

// The (key, value) tuples of a dict.
std::vector<Value> Pairs(const Call& call) {
  const Dict* dict = AsDict(call.self);
  if (dict == nullptr) Fail("{}: expected dict, found {}", call.name, TypeName(call.self));
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict->items) {
    pairs.push_back(call.runtime.NewList({key, value}, List::kTuple));
  }
  return pairs;
}

// Sorts the pairs of a dict by their keys or by their values.
Value DictSort(Call& call) {
  const BoundArguments args = call.Take({"case_sensitive", "by", "reverse"});
  const std::string by = args.Has(1) ? args.NeedTextAt(1) : "key";
  if (by != "key" && by != "value") Fail("dictsort: expected key or value, found '{}'", by);
  const Value place = std::int64_t{by == "value"};
  return SortedBy(call.runtime, Pairs(call), place, args.Flag(0), args.Flag(2));
}

// The result of filters that Python computes element by element, which can be read once. Here all
// elements are computed at once; the difference is not visible, as filters change nothing.
Value Generator(Call& call, std::vector<Value> items) {
  return call.runtime.NewList(std::move(items), List::kGenerator);
}

Value Items(Call& call) {
  call.Take({});
  return Generator(call, IsUndefined(call.self) ? std::vector<Value>() : Pairs(call));
}

// Keeps the first element of each key.
Value Unique(Call& call) {
  const BoundArguments args = call.Take({"case_sensitive", "attribute"});
  std::vector<Value> kept;
  Dict* seen = call.runtime.New<Dict>();
  for (const Value& item : Elements(call.runtime, call.self)) {
    const Value key = SortKey(call.runtime, item, args.Or(1, None()), args.Flag(0));
    if (Find(call.runtime, *seen, key) != nullptr) continue;
    Insert(call.runtime, *seen, key, None());
    kept.push_back(item);
  }
  return Generator(call, std::move(kept));
}

// min, max: the first of the least or greatest elements; undefined for an empty sequence.
template <Operator kBetter>
Value Extreme(Call& call) {
  const BoundArguments args = call.Take({"case_sensitive", "attribute"});
  Value best;
  Value best_key;
  for (const Value& item : Elements(call.runtime, call.self)) {
    Value key = SortKey(call.runtime, item, args.Or(1, None()), args.Flag(0));
    if (!IsUndefined(best_key) && !Compare(call.runtime, kBetter, key, best_key)) continue;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

// Adds to `start` from the left, so that its type decides: sum(start='') joins texts.
Value Sum(Call& call) {
  const BoundArguments args = call.Take({"attribute", "start"});
  Value sum = args.Or(1, std::int64_t{0});
  for (const Value& item : Elements(call.runtime, call.self)) {
    const Value part = PartOf(call.runtime, item, args.Or(0, None()));
    sum = Arithmetic(call.runtime, Operator::kAdd, sum, part);
  }
  return sum;
}

// Joins the elements as texts, with the separator between them.
Value Join(Call& call) {
  const BoundArguments args = call.Take({"d", "attribute"});
  const std::string separator = args.Has(0) ? Str(call.runtime, args[0]) : "";
  std::string out;
  Marks marks;
  Joiner joiner(call.runtime, separator);
  for (const Value& item : Elements(call.runtime, call.self)) {
    joiner.BeginPart(out);
    const Value part = PartOf(call.runtime, item, args.Or(1, None()));
    if (const Marks* of_part = MarksOf(call.runtime, part)) marks.Append(*of_part, out.size());
    AppendStr(call.runtime, part, out);
  }
  Value text = call.runtime.NewText(std::move(out));
  SetMarks(call.runtime, text, std::move(marks));
  return text;
}

// Also of a text and of a dict. Takes one item from a generator.
Value FirstOf(Call& call) {
  call.Take({});
  if (AsText(call.self) != nullptr) return Item(call.runtime, call.self, std::int64_t{0});
  std::vector<Value> items = Elements(call.runtime, call.self);
  if (items.empty()) return Undefined();
  Value first = items.front();
  // A generator keeps the others.
  List* list = AsList(call.self);
  if (list != nullptr && list->kind == List::kGenerator) {
    list->items.assign(items.begin() + 1, items.end());
  }
  return first;
}

// Python has no last element of a generator.
Value LastOf(Call& call) {
  call.Take({});
  if (AsText(call.self) != nullptr) return Item(call.runtime, call.self, std::int64_t{-1});
  const List* list = AsList(call.self);
  if (list != nullptr && list->kind == List::kGenerator) Fail("last: a generator has no last item");
  const std::vector<Value> items = Elements(call.runtime, call.self);
  return items.empty() ? Value() : items.back();
}

// A text stays a text; Jinja gives an iterator for anything else.
Value Reverse(Call& call) {
  call.Take({});
  if (AsText(call.self) != nullptr) {
    return Slice(call.runtime, call.self, None(), None(), /*step=*/std::int64_t{-1});
  }
  std::vector<Value> items = Elements(call.runtime, call.self);
  std::reverse(items.begin(), items.end());
  return Generator(call, std::move(items));
}

// Lists of `count` elements each; fill_with takes the places that are left in the last one.
Value Batch(Call& call) {
  const BoundArguments args = call.Take({"linecount", "fill_with"}, 1);
  const std::int64_t count = args.IntegerOr(0, 1);
  std::vector<Value> batches;
  std::vector<Value> batch;
  // Python compares the length with the count when an element comes.
  for (Value& item : Elements(call.runtime, call.self)) {
    if (std::ssize(batch) == count)
      batches.push_back(call.runtime.NewList(std::exchange(batch, {})));
    batch.push_back(std::move(item));
  }
  if (!batch.empty() && args.IsGiven(1) && std::ssize(batch) < count) {
    call.runtime.Charge(static_cast<std::size_t>(count), sizeof(Value));
    batch.resize(count, args[1]);
  }
  if (!batch.empty()) batches.push_back(call.runtime.NewList(std::move(batch)));
  return Generator(call, std::move(batches));
}

// So many lists; the first ones have one element more where the number does not divide. fill_with
// is added to the others.
Value SliceInto(Call& call) {
  const BoundArguments args = call.Take({"slices", "fill_with"}, 1);
  const std::int64_t slices = args.IntegerOr(0, 1);
  const std::vector<Value> items = Elements(call.runtime, call.self);
  if (slices == 0) Fail("slice: 0 slices");
  call.runtime.Charge(static_cast<std::size_t>(std::max<std::int64_t>(slices, 0)), sizeof(List));
  const std::int64_t each = std::ssize(items) / slices;
  const std::int64_t longer = std::ssize(items) % slices;
  std::vector<Value> lists;
  auto next = items.begin();
  for (std::int64_t s = 0; s < slices; ++s) {
    const auto end = next + each + (s < longer ? 1 : 0);
    std::vector<Value> slice(next, end);
    if (args.IsGiven(1) && s >= longer) slice.push_back(args[1]);
    lists.push_back(call.runtime.NewList(std::move(slice)));
    next = end;
  }
  return Generator(call, std::move(lists));
}

// Unlike object.name, finds no element of a dict.
Value AttributeAlone(Call& call) {
  const BoundArguments args = call.Take({"name"}, 1);
  const std::string& name = args.NeedTextAt(0);
  if (std::holds_alternative<Loop*>(call.self)) Fail("attr: 'loop' is not supported");
  const bool is_element = AsDict(call.self) != nullptr && FindMethod(call.self, name) == nullptr;
  Value value = is_element ? Value() : Attribute(call.runtime, call.self, name);
  // The name belongs to this call.
  return IsUndefined(value) ? Value() : value;
}

Value ListOf(Call& call) {
  call.Take({});
  return call.runtime.NewList(Elements(call.runtime, call.self));
}

Value LengthOf(Call& call) {
  call.Take({});
  const std::string* text = call.runtime.is_llama_cpp() ? AsText(call.self) : nullptr;
  return text != nullptr ? std::ssize(*text) : Length(call.runtime, call.self);
}

// Removes the first positional argument; filters that call others pass the rest on.
std::optional<Value> TakeFirst(Arguments& arguments) {
  if (arguments.positional.empty()) return std::nullopt;
  Value value = std::move(arguments.positional.front());
  arguments.positional.erase(arguments.positional.begin());
  return value;
}

// map(attribute=..., default=...), or map(filter, arguments of the filter).
Value Map(Call& call) {
  std::vector<Value> mapped;
  if (!Truth(call.self)) return Generator(call, {});
  if (const std::optional<Value> filter = TakeFirst(call.arguments)) {
    const DepthLevel level = call.runtime.Enter();
    for (const Value& item : Elements(call.runtime, call.self)) {
      const std::string& name = NeedText(*filter, call.name);
      mapped.push_back(ApplyFilter(call.runtime, name, item, call.arguments));
    }
    return Generator(call, std::move(mapped));
  }
  const BoundArguments args = call.Take({"attribute", "default"}, 1);
  for (const Value& item : Elements(call.runtime, call.self)) {
    Value part = PartOf(call.runtime, item, args[0]);
    mapped.push_back(IsUndefined(part) && args.IsGiven(1) ? args[1] : std::move(part));
  }
  return Generator(call, std::move(mapped));
}

// select(test, arguments of the test), selectattr(attribute, test, ...); without a test: the truth.
template <bool kByAttribute, bool kKeep>
Value Select(Call& call) {
  if (!Truth(call.self)) return Generator(call, {});
  std::optional<Value> attribute = None();
  if (kByAttribute) attribute = TakeFirst(call.arguments);
  if (!attribute) Fail("{}: the attribute is missing", call.name);
  const std::optional<Value> test = TakeFirst(call.arguments);
  std::vector<Value> kept;
  for (const Value& item : Elements(call.runtime, call.self)) {
    const Value part = PartOf(call.runtime, item, *attribute);
    const bool holds =
        test ? ApplyTest(call.runtime, NeedText(*test, call.name), part, call.arguments)
             : Truth(part);
    if (holds == kKeep) kept.push_back(item);
  }
  return Generator(call, std::move(kept));
}

constexpr Function kListFilters[] = {
    {"attr", AttributeAlone},
    {"batch", Batch},
    {"count", LengthOf},
    {"dictsort", DictSort},
    {"first", FirstOf},
    {"items", Items},
    {"join", Join},
    {"last", LastOf},
    {"length", LengthOf},
    {"list", ListOf},
    {"map", Map},
    {"max", Extreme<Operator::kGreater>},
    {"min", Extreme<Operator::kLess>},
    {"reject", Select<false, false>},
    {"rejectattr", Select<true, false>},
    {"reverse", Reverse},
    {"select", Select<false, true>},
    {"selectattr", Select<true, true>},
    {"slice", SliceInto},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

std::span<const Function> ListFilters() { return kListFilters; }

}  // namespace qlora::jinja
