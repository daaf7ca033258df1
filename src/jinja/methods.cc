// The methods of texts and dicts. A list has none: those of Python either change the list, which a
// template must not, or no known template calls them.
#include <algorithm>

#include "jinja/call.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

// strip, lstrip, rstrip, and the filter trim.
template <Side kSide>
Value StripSide(Call& call) {
  const BoundArguments args = call.Take({"chars"});
  std::optional<std::string_view> chars;
  if (args.IsGiven(0)) chars = args.NeedTextAt(0);
  const std::string text = Str(call.runtime, call.self);
  if (chars) call.runtime.Charge(text.size(), chars->size());
  return call.runtime.NewText(std::string(StripText(text, kSide, chars)));
}

Value ListOfTexts(Runtime& runtime, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(runtime.NewText(std::string(part)));
  return runtime.NewList(std::move(items));
}

// Without a separator: at runs of white space (SplitAtSpace).
Value Split(Call& call) {
  const BoundArguments args = call.Take({"sep", "maxsplit"});
  const std::int64_t limit = args.IntegerOr(1, -1);
  const std::string& text = *AsText(call.self);
  if (!args.IsGiven(0)) return ListOfTexts(call.runtime, SplitAtSpace(call.runtime, text, limit));
  const std::string& separator = args.NeedTextAt(0);
  if (separator.empty()) Fail("split: the separator is empty");
  return ListOfTexts(call.runtime, SplitAt(call.runtime, text, separator, limit));
}

Value SplitIntoLines(Call& call) {
  call.Take({});
  return ListOfTexts(call.runtime, SplitLines(call.runtime, *AsText(call.self)));
}

// startswith, endswith; the argument is a text, or a tuple of which one text suffices.
template <bool kAtEnd>
Value HasAffix(Call& call) {
  const BoundArguments args = call.Take({"affix"}, 1);
  const std::string_view text = *AsText(call.self);
  const auto matches = [&](const Value& value) {
    const std::string& affix = NeedText(value, call.name);
    call.runtime.Charge(affix.size());
    return kAtEnd ? text.ends_with(affix) : text.starts_with(affix);
  };
  const List* list = AsList(args[0]);
  if (list == nullptr || list->kind != List::kTuple) return matches(args[0]);
  return std::any_of(list->items.begin(), list->items.end(), matches);
}

// The character at which a part begins, or -1.
Value FindText(Call& call) {
  const BoundArguments args = call.Take({"sub"}, 1);
  const std::string_view text = *AsText(call.self);
  const std::size_t at = FindPart(call.runtime, text, args.NeedTextAt(0));
  return at == std::string_view::npos ? std::int64_t{-1} : CountCharacters(text.substr(0, at));
}

// Puts the text between the elements, which must be texts; the filter join takes any value.
Value JoinTexts(Call& call) {
  const BoundArguments args = call.Take({"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : Elements(call.runtime, args[0])) {
    if (!first) call.runtime.Append(out, *AsText(call.self));
    first = false;
    call.runtime.Append(out, NeedText(item, call.name));
  }
  return call.runtime.NewText(std::move(out));
}

// 'a{}b'.format(x): each {} takes the next argument.
Value Format(Call& call) {
  const auto& values = call.arguments.positional;
  const auto parts = SplitAt(call.runtime, *AsText(call.self), "{}");
  if (values.size() + 1 < parts.size() || !call.arguments.named.empty()) {
    Fail("format: expected one positional argument for each '{{}}'");
  }
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) AppendStr(call.runtime, values[i - 1], out);
    if (parts[i].find_first_of("{}") != std::string_view::npos) {
      Fail("format: only '{{}}' is supported, found '{}'", parts[i]);
    }
    out += parts[i];
  }
  return call.runtime.NewText(std::move(out));
}

// A word of str.title is a run of letters that have a case: "they're" -> "They'Re".
Value Title(Call& call) {
  call.Take({});
  const auto ends_word = [](char32_t c) {
    constexpr unsigned kCased = kUpperOrTitle | kLower;
    return (ClassOf(c) & kCased) == 0;
  };
  return call.runtime.NewText(TitleCase(call.runtime, *AsText(call.self), ends_word));
}

constexpr Function kTextMethods[] = {
    {"capitalize", Capitalize},
    {"endswith", HasAffix<true>},
    {"find", FindText},
    {"format", Format},
    {"join", JoinTexts},
    {"lower", Lower},
    {"lstrip", StripSide<Side::kLeft>},
    {"replace", Replace},
    {"rstrip", StripSide<Side::kRight>},
    {"split", Split},
    {"splitlines", SplitIntoLines},
    {"startswith", HasAffix<false>},
    {"strip", Strip},
    {"title", Title},
    {"upper", Upper},
};

// A view with pick(item) for each item of the dict.
template <typename Pick>
Value View(Call& call, Pick pick) {
  call.Take({});
  std::vector<Value> items;
  for (const auto& item : AsDict(call.self)->items) items.push_back(pick(item));
  return call.runtime.NewList(std::move(items), List::kView);
}

Value DictItems(Call& call) {
  return View(call, [&](const auto& item) -> Value {
    return call.runtime.NewList({item.first, item.second}, List::kTuple);
  });
}
Value DictKeys(Call& call) {
  return View(call, [](const auto& item) { return item.first; });
}
Value DictValues(Call& call) {
  return View(call, [](const auto& item) { return item.second; });
}

Value DictGet(Call& call) {
  const BoundArguments args = call.Take({"key", "default"}, 1);
  const Value* value = Find(call.runtime, *AsDict(call.self), args[0]);
  return value != nullptr ? *value : args.Or(1, None());
}

constexpr Function kDictMethods[] = {
    {"get", DictGet},
    {"items", DictItems},
    {"keys", DictKeys},
    {"values", DictValues},
};

// map(character, is_first, out) appends what a character becomes.
template <typename Map>
Value MapCharacters(Call& call, Map map) {
  call.Take({});
  const std::string text = Str(call.runtime, call.self);
  call.runtime.Charge(text.size(), kCaseWork);
  std::string out;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const bool is_first = p == text.data();
    map(NextCharacter(p), is_first, out);
  }
  return call.runtime.NewText(std::move(out));
}

}  // namespace

Value Capitalize(Call& call) {
  return MapCharacters(call, [](char32_t c, bool is_first, std::string& out) {
    is_first ? AppendCapital(c, /*is_title=*/true, out) : AppendLowerCase(c, &out);
  });
}

Value Lower(Call& call) {
  return MapCharacters(call, [](char32_t c, bool, std::string& out) { AppendLowerCase(c, &out); });
}

Value Upper(Call& call) {
  return MapCharacters(
      call, [](char32_t c, bool, std::string& out) { AppendCapital(c, /*is_title=*/false, out); });
}

// Cuts at `old`, at most `count` times, and puts `new` between the parts.
Value Replace(Call& call) {
  const BoundArguments args = call.Take({"old", "new", "count"}, 2);
  const std::string text = Str(call.runtime, call.self);
  const std::string& old = args.NeedTextAt(0);
  const std::string& by = args.NeedTextAt(1);
  if (old.empty()) Fail("replace: the text to replace is empty");
  const std::int64_t limit = args.IsGiven(2) ? args.IntegerOr(2, -1) : -1;
  std::string out;
  bool first = true;
  for (const std::string_view part : SplitAt(call.runtime, text, old, limit)) {
    if (!first) call.runtime.Append(out, by);
    first = false;
    out += part;
  }
  return call.runtime.NewText(std::move(out));
}

Value Strip(Call& call) { return StripSide<Side::kBoth>(call); }

const Function* FindMethod(const Value& object, std::string_view name) {
  if (AsText(object) != nullptr) return FindFunction(kTextMethods, name);
  if (AsDict(object) != nullptr) return FindFunction(kDictMethods, name);
  return nullptr;
}

}  // namespace qlora::jinja
