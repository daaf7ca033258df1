// The methods of texts, lists and dicts.
#include <algorithm>

#include "jinja/python_str.h"
#include "jinja/string_format.h"
#include "jinja/value.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

struct Call {
  Runtime& runtime;
  const Value& self;
  std::string_view name;
  Arguments arguments;

  std::vector<std::optional<Value>> Take(std::initializer_list<std::string_view> names,
                                         std::size_t required = 0) {
    return Bind(name, std::move(arguments), names, required);
  }
  std::string_view Receiver() const { return *AsText(self); }
};

using Method = Value (*)(Call&);
struct MethodEntry {
  std::string_view name;
  Method method;  // null: Python has it, templates do not need it
};

bool IsGiven(const std::optional<Value>& value) { return value && !IsNone(*value); }

template <Side kSide>
Value StripMethod(Call& call) {
  const auto args = call.Take({"chars"});
  std::optional<std::string_view> chars;
  if (IsGiven(args[0])) chars = NeedText(*args[0], call.name);
  return call.runtime.MakeText(std::string(Strip(call.Receiver(), kSide, chars)));
}

template <auto kFunction>
Value Mapped(Call& call) {
  call.Take({});
  return call.runtime.MakeText(kFunction(call.Receiver()));
}

Value ListOf(Runtime& runtime, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(runtime.MakeText(std::string(part)));
  return runtime.NewList(std::move(items));
}

template <bool kFromRight>
Value Split(Call& call) {
  const auto args = call.Take({"sep", "maxsplit"});
  const std::int64_t limit = args[1] ? NeedInteger(*args[1], call.name) : -1;
  const std::string_view text = call.Receiver();
  if (!IsGiven(args[0])) {
    return ListOf(call.runtime,
                  kFromRight ? SplitAtSpaceFromRight(text, limit) : SplitAtSpace(text, limit));
  }
  const std::string& separator = NeedText(*args[0], call.name);
  if (separator.empty()) Fail("{}: the separator is empty", call.name);
  return ListOf(call.runtime, kFromRight ? SplitAtFromRight(text, separator, limit)
                                         : SplitAt(text, separator, limit));
}

template <bool kFromRight>
Value Partition(Call& call) {
  const auto args = call.Take({"sep"}, 1);
  const std::string& separator = NeedText(*args[0], call.name);
  const std::string_view text = call.Receiver();
  const std::size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
  std::vector<Value> items;
  const auto add = [&](std::string_view part) {
    items.push_back(call.runtime.MakeText(std::string(part)));
  };
  if (at != std::string_view::npos) {
    add(text.substr(0, at));
    add(separator);
    add(text.substr(at + separator.size()));
  } else {
    add(kFromRight ? "" : text);
    add("");
    add(kFromRight ? text : "");
  }
  return call.runtime.NewList(std::move(items), List::kTuple);
}

// The part of the receiver between two optional bounds, and the character at which it begins.
std::pair<std::string_view, std::int64_t> Window(Call& call, const std::optional<Value>& begin,
                                                 const std::optional<Value>& end) {
  const std::string_view text = call.Receiver();
  call.runtime.Charge(text.size());
  const std::int64_t length = CountCharacters(text);
  const auto bound = [&](const std::optional<Value>& value, std::int64_t otherwise) {
    if (!IsGiven(value)) return otherwise;
    const std::int64_t index = NeedInteger(*value, call.name);
    return index < 0 ? std::max<std::int64_t>(index + length, 0) : index;
  };
  const std::int64_t first = bound(begin, 0);
  const std::size_t from = ByteOffset(text, first);
  const std::size_t to = std::max(from, ByteOffset(text, bound(end, length)));
  return {text.substr(from, to - from), first};
}

template <bool kAtEnd>
Value StartsWith(Call& call) {
  const auto args = call.Take({"prefix", "start", "end"}, 1);
  const std::string_view text = Window(call, args[1], args[2]).first;
  const auto matches = [&](const Value& value) {
    const std::string& affix = NeedText(value, call.name);
    return kAtEnd ? text.ends_with(affix) : text.starts_with(affix);
  };
  const List* list = AsList(*args[0]);
  if (list == nullptr || list->kind != List::kTuple) return matches(*args[0]);
  return std::any_of(list->items.begin(), list->items.end(), matches);
}

template <bool kFromRight, bool kMustExist>
Value FindText(Call& call) {
  const auto args = call.Take({"sub", "start", "end"}, 1);
  const auto [text, first] = Window(call, args[1], args[2]);
  const std::string& part = NeedText(*args[0], call.name);
  const std::size_t at = kFromRight ? text.rfind(part) : text.find(part);
  if (at != std::string_view::npos) return first + CountCharacters(text.substr(0, at));
  if (kMustExist) Fail("{}: the text was not found", call.name);
  return std::int64_t{-1};
}

Value CountText(Call& call) {
  const auto args = call.Take({"sub", "start", "end"}, 1);
  const std::string_view text = Window(call, args[1], args[2]).first;
  const std::string& part = NeedText(*args[0], call.name);
  if (part.empty()) return CountCharacters(text) + 1;
  return static_cast<std::int64_t>(SplitAt(text, part, -1).size()) - 1;
}

Value ReplaceText(Call& call) {
  const auto args = call.Take({"old", "new", "count"}, 2);
  const std::string_view text = call.Receiver();
  const std::string& by = NeedText(*args[1], call.name);
  const std::string& old = NeedText(*args[0], call.name);
  const std::int64_t limit = args[2] ? NeedInteger(*args[2], call.name) : -1;
  call.runtime.Charge(text.size() / std::max<std::size_t>(old.size(), 1) * by.size());
  return call.runtime.MakeText(Replace(text, old, by, limit));
}

template <bool kAtEnd>
Value RemoveAffix(Call& call) {
  const auto args = call.Take({"affix"}, 1);
  const std::string& affix = NeedText(*args[0], call.name);
  std::string_view text = call.Receiver();
  if (kAtEnd && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!kAtEnd && text.starts_with(affix)) text.remove_prefix(affix.size());
  return call.runtime.MakeText(std::string(text));
}

Value JoinText(Call& call) {
  const auto args = call.Take({"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : Elements(call.runtime, *args[0])) {
    if (!first) out += call.Receiver();
    first = false;
    out += NeedText(item, call.name);
    call.runtime.Charge(call.Receiver().size());
  }
  return call.runtime.MakeText(std::move(out));
}

Value Lines(Call& call) {
  const auto args = call.Take({"keepends"});
  return ListOf(call.runtime, SplitLines(call.Receiver(), args[0] && Truth(*args[0])));
}

template <bool (*kTest)(char32_t)>
Value AllCharacters(Call& call) {
  call.Take({});
  const std::string_view text = call.Receiver();
  const char* p = text.data();
  const char* end = p + text.size();
  while (p != end) {
    if (!kTest(NextCharacter(p))) return false;
  }
  return !text.empty();
}
bool IsAlpha(char32_t c) { return (ClassOf(c) & kLetter) != 0; }
bool IsDigit(char32_t c) { return (ClassOf(c) & kNumber) != 0; }
bool IsAlnum(char32_t c) { return (ClassOf(c) & (kLetter | kNumber)) != 0; }

template <auto kFunction>
Value Tested(Call& call) {
  call.Take({});
  return kFunction(call.Receiver());
}

// Widened to `width` characters on the left (-1), on the right (1) or on both sides (0).
template <int kSide>
Value Widen(Call& call) {
  const auto args = call.Take({"width", "fillchar"}, 1);
  const std::string fill = args[1] ? NeedText(*args[1], call.name) : " ";
  if (CountCharacters(fill) != 1) Fail("{}: expected one character to fill with", call.name);
  const std::int64_t length = CountCharacters(call.Receiver());
  const std::int64_t width = std::max(NeedInteger(*args[0], call.name), length);
  const std::int64_t missing = width - length;
  call.runtime.Charge(static_cast<std::size_t>(missing));
  const std::int64_t both = missing / 2 + (missing & width & 1);
  const std::int64_t left = kSide < 0 ? missing : kSide > 0 ? 0 : both;
  std::string out;
  for (std::int64_t i = 0; i < left; ++i) out += fill;
  out += call.Receiver();
  for (std::int64_t i = left; i < missing; ++i) out += fill;
  return call.runtime.MakeText(std::move(out));
}

constexpr MethodEntry kTextMethods[] = {
    {"capitalize", Mapped<Capitalize>},
    {"casefold", nullptr},
    {"center", Widen<0>},
    {"count", CountText},
    {"encode", nullptr},
    {"endswith", StartsWith<true>},
    {"expandtabs", nullptr},
    {"find", FindText<false, false>},
    {"format", [](Call& c) { return FormatBraces(c.runtime, c.Receiver(), c.arguments); }},
    {"format_map", nullptr},
    {"index", FindText<false, true>},
    {"isalnum", AllCharacters<IsAlnum>},
    {"isalpha", AllCharacters<IsAlpha>},
    {"isascii", nullptr},
    {"isdecimal", AllCharacters<IsDigit>},
    {"isdigit", AllCharacters<IsDigit>},
    {"isidentifier", nullptr},
    {"islower", Tested<IsLower>},
    {"isnumeric", AllCharacters<IsNumeric>},
    {"isprintable", nullptr},
    {"isspace", AllCharacters<IsPythonSpace>},
    {"istitle", nullptr},
    {"isupper", Tested<IsUpper>},
    {"join", JoinText},
    {"ljust", Widen<1>},
    {"lower", Mapped<Lower>},
    {"lstrip", StripMethod<Side::kLeft>},
    {"maketrans", nullptr},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", ReplaceText},
    {"rfind", FindText<true, false>},
    {"rindex", FindText<true, true>},
    {"rjust", Widen<-1>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", StripMethod<Side::kRight>},
    {"split", Split<false>},
    {"splitlines", Lines},
    {"startswith", StartsWith<false>},
    {"strip", StripMethod<Side::kBoth>},
    {"swapcase", nullptr},
    {"title", Mapped<TitleCase>},
    {"translate", nullptr},
    {"upper", Mapped<Upper>},
    {"zfill", nullptr},
};

template <typename Pick>
Value View(Call& call, Pick pick) {
  call.Take({});
  std::vector<Value> items;
  for (const auto& item : AsDict(call.self)->items) items.push_back(pick(item));
  return call.runtime.NewList(std::move(items), List::kView);
}

Value DictGet(Call& call) {
  const auto args = call.Take({"key", "default"}, 1);
  const Value* value = Find(call.runtime, *AsDict(call.self), *args[0]);
  return value != nullptr ? *value : args[1].value_or(None());
}

Value DictCopy(Call& call) {
  call.Take({});
  Dict* copy = call.runtime.NewDict();
  copy->items = AsDict(call.self)->items;
  call.runtime.Charge(copy->items.size() * sizeof(copy->items[0]));
  return copy;
}

constexpr MethodEntry kDictMethods[] = {
    {"clear", nullptr},
    {"copy", DictCopy},
    {"fromkeys", nullptr},
    {"get", DictGet},
    {"items",
     [](Call& c) {
       return View(c, [&](const auto& item) -> Value {
         return c.runtime.NewList({item.first, item.second}, List::kTuple);
       });
     }},
    {"keys", [](Call& c) { return View(c, [](const auto& item) { return item.first; }); }},
    {"pop", nullptr},
    {"popitem", nullptr},
    {"setdefault", nullptr},
    {"update", nullptr},
    {"values", [](Call& c) { return View(c, [](const auto& item) { return item.second; }); }},
};

Value ListIndex(Call& call) {
  const auto args = call.Take({"value"}, 1);
  const auto& items = AsList(call.self)->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (Equal(call.runtime, items[i], *args[0])) return static_cast<std::int64_t>(i);
  }
  Fail("index: the list has no such element");
}

Value ListCount(Call& call) {
  const auto args = call.Take({"value"}, 1);
  const auto& items = AsList(call.self)->items;
  return static_cast<std::int64_t>(
      std::count_if(items.begin(), items.end(),
                    [&](const Value& item) { return Equal(call.runtime, item, *args[0]); }));
}

// Changing a list or a dict is not supported, as in Jinja's immutable sandbox.
constexpr MethodEntry kListMethods[] = {
    {"append", nullptr}, {"clear", nullptr},   {"copy", nullptr},   {"count", ListCount},
    {"extend", nullptr}, {"index", ListIndex}, {"insert", nullptr}, {"pop", nullptr},
    {"remove", nullptr}, {"reverse", nullptr}, {"sort", nullptr},
};

constexpr MethodEntry kTupleMethods[] = {{"count", ListCount}, {"index", ListIndex}};

template <std::size_t kSize>
const MethodEntry* FindIn(const MethodEntry (&table)[kSize], std::string_view name) {
  const auto* entry =
      std::lower_bound(std::begin(table), std::end(table), name,
                       [](const MethodEntry& e, std::string_view n) { return e.name < n; });
  return entry != std::end(table) && entry->name == name ? entry : nullptr;
}

const MethodEntry* FindMethod(const Value& object, std::string_view name) {
  if (AsText(object) != nullptr) return FindIn(kTextMethods, name);
  if (AsDict(object) != nullptr) return FindIn(kDictMethods, name);
  const List* list = AsList(object);
  if (list == nullptr) return nullptr;
  if (list->kind == List::kList) return FindIn(kListMethods, name);
  return list->kind <= List::kRange ? FindIn(kTupleMethods, name) : nullptr;
}

}  // namespace

bool HasMethod(const Value& object, std::string_view name) {
  return FindMethod(object, name) != nullptr;
}

Value CallMethod(Runtime& runtime, const Value& self, std::string_view name, Arguments arguments) {
  const MethodEntry* entry = FindMethod(self, name);
  if (entry == nullptr || entry->method == nullptr) {
    Fail("method '{}' of {} is not supported", name, TypeName(self));
  }
  if (const std::string* text = AsText(self)) runtime.Charge(text->size());
  Call call{runtime, self, name, std::move(arguments)};
  return entry->method(call);
}

}  // namespace qlora::jinja
