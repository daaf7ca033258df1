// The methods of texts, lists and dicts. The name of a method hides an element, {"get": 1}.get is
// the method, so the tables also hold names that are not supported:
//
//   Unsupported   a method that no known template calls: an error, but `s.zfill is defined` is true
//   null          a method that changes its object: undefined, as in Jinja's immutable sandbox
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "jinja/functions/call.h"
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
  return call.runtime.NewTextLike(call.self, std::string(StripText(text, kSide, chars)));
}

// Each part is a copy: texts are shared, but their parts are not.
Value ListOfTexts(Call& call, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    items.push_back(call.runtime.NewTextLike(call.self, std::string(part)));
  }
  return call.runtime.NewList(std::move(items));
}

// split, rsplit. Without a separator: at runs of white space.
template <Side kFrom>
Value Split(Call& call) {
  const BoundArguments args = call.Take({"sep", "maxsplit"});
  const std::int64_t limit = args.IntegerOr(1, -1);
  const std::string& text = *AsText(call.self);
  if (!args.IsGiven(0)) {
    return ListOfTexts(call, SplitAtSpace(call.runtime, text, limit, kFrom));
  }
  const std::string& separator = args.NeedTextAt(0);
  if (separator.empty()) Fail("{}: the separator is empty", call.name);
  return ListOfTexts(call, SplitAt(call.runtime, text, separator, limit, kFrom));
}

// partition, rpartition: the tuple (before, separator, behind); without one (text, '', ''), or
// ('', '', text).
template <Side kFrom>
Value Partition(Call& call) {
  const BoundArguments args = call.Take({"sep"}, 1);
  const std::string& separator = args.NeedTextAt(0);
  auto parts = SplitAt(call.runtime, *AsText(call.self), separator, /*limit=*/1, kFrom);
  if (parts.size() == 2) {
    parts.insert(parts.begin() + 1, separator);
  } else {
    parts.insert(kFrom == Side::kRight ? parts.begin() : parts.end(), 2, "");
  }
  List* list = AsList(ListOfTexts(call, parts));
  list->kind = List::kTuple;
  return list;
}

Value SplitIntoLines(Call& call) {
  const BoundArguments args = call.Take({"keepends"});
  return ListOfTexts(call, SplitLines(call.runtime, *AsText(call.self), args.Flag(0)));
}

// The part of the text between the arguments 1 and 2, which may be left out, as of a slice; and the
// character at which it begins.
struct Window {
  std::string_view text;
  std::int64_t begin;
};
Window WindowOf(const Call& call, const BoundArguments& args) {
  const std::string_view text = *AsText(call.self);
  const std::int64_t length = CountCharacters(text);
  const auto bound = [&](int i, std::int64_t otherwise) {
    const std::int64_t index = args.IsGiven(i) ? args.IntegerOr(i, 0) : otherwise;
    return index < 0 ? std::max<std::int64_t>(index + length, 0) : index;
  };
  const std::size_t begin = ByteOffset(text, bound(1, 0));
  const std::size_t end = std::max(begin, ByteOffset(text, bound(2, length)));
  return {text.substr(begin, end - begin), bound(1, 0)};
}

// startswith, endswith; the argument is a text, or a tuple of which one text suffices.
template <bool kAtEnd>
Value HasAffix(Call& call) {
  const BoundArguments args = call.Take({"affix", "start", "end"}, 1);
  const std::string_view text = WindowOf(call, args).text;
  const auto matches = [&](const Value& value) {
    const std::string& affix = NeedText(value, call.name);
    call.runtime.Charge(affix.size());
    return kAtEnd ? text.ends_with(affix) : text.starts_with(affix);
  };
  const List* list = AsList(args[0]);
  if (list == nullptr || list->kind != List::kTuple) return matches(args[0]);
  return std::ranges::any_of(list->items, matches);
}

// find, rfind: the character at which a part begins, or -1. index, rindex: an error for -1.
template <Side kFrom, bool kMustExist>
Value FindText(Call& call) {
  const BoundArguments args = call.Take({"sub", "start", "end"}, 1);
  const Window window = WindowOf(call, args);
  const std::size_t at = FindPart(call.runtime, window.text, args.NeedTextAt(0), kFrom);
  if (at != std::string_view::npos)
    return window.begin + CountCharacters(window.text.substr(0, at));
  if (kMustExist) Fail("{}: the text was not found", call.name);
  return std::int64_t{-1};
}

// Parts that do not overlap: 'aaa'.count('aa') is 1. An empty part is found around each character.
Value CountText(Call& call) {
  const BoundArguments args = call.Take({"sub", "start", "end"}, 1);
  const std::string_view text = WindowOf(call, args).text;
  const std::string& part = args.NeedTextAt(0);
  if (part.empty()) return CountCharacters(text) + 1;
  return std::ssize(SplitAt(call.runtime, text, part)) - std::int64_t{1};
}

// removeprefix, removesuffix
template <bool kAtEnd>
Value RemoveAffix(Call& call) {
  const BoundArguments args = call.Take({"affix"}, 1);
  const std::string& affix = args.NeedTextAt(0);
  std::string_view text = *AsText(call.self);
  if (kAtEnd && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!kAtEnd && text.starts_with(affix)) text.remove_prefix(affix.size());
  return call.runtime.NewTextLike(call.self, std::string(text));
}

// ljust, rjust, center: one character fills the width.
template <Side kTextAt>
Value Justify(Call& call) {
  const BoundArguments args = call.Take({"width", "fillchar"}, 1);
  const std::int64_t width = args.IntegerOr(0, 0);
  const std::string fill = args.Has(1) ? args.NeedTextAt(1) : " ";
  if (CountCharacters(fill) != 1) Fail("{}: expected one character to fill with", call.name);
  const std::string& text = *AsText(call.self);
  const std::int64_t missing = std::max(width, CountCharacters(text)) - CountCharacters(text);
  // As CPython rounds the half of an odd number.
  const std::int64_t half = missing / 2 + (missing & width & 1);
  const std::int64_t before = kTextAt == Side::kLeft ? 0 : kTextAt == Side::kRight ? missing : half;
  call.runtime.Charge(static_cast<std::size_t>(missing), fill.size());
  std::string out;
  for (std::int64_t i = 0; i < before; ++i) out += fill;
  out += text;
  for (std::int64_t i = before; i < missing; ++i) out += fill;
  return call.runtime.NewTextLike(call.self, std::move(out));
}

// Zeros behind the sign.
Value FillWithZeros(Call& call) {
  const BoundArguments args = call.Take({"width"}, 1);
  const std::string& text = *AsText(call.self);
  const std::int64_t characters = CountCharacters(text);
  const std::int64_t missing = std::max(args.IntegerOr(0, 0), characters) - characters;
  call.runtime.Charge(static_cast<std::size_t>(missing));
  const std::size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return call.runtime.NewTextLike(
      call.self, text.substr(0, sign) + std::string(missing, '0') + text.substr(sign));
}

Value IsAscii(Call& call) {
  call.Take({});
  return std::ranges::all_of(*AsText(call.self),
                             [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// isalpha and the like: all characters are of these classes, and there is one.
template <unsigned kClasses>
Value AreAll(Call& call) {
  call.Take({});
  const std::string& text = *AsText(call.self);
  for (const char* p = text.data(); p != text.data() + text.size();) {
    if ((ClassOf(NextCharacter(p)) & kClasses) == 0) return false;
  }
  return !text.empty();
}

Value IsSpace(Call& call) {
  call.Take({});
  return !AsText(call.self)->empty() && StripText(*AsText(call.self)).empty();
}

// islower, isupper
template <unsigned kCase>
Value IsCased(Call& call) {
  call.Take({});
  return HasCase(*AsText(call.self), kCase);
}

// Puts the text between the elements, which must be texts; the filter join takes any value.
Value JoinTexts(Call& call) {
  const BoundArguments args = call.Take({"iterable"}, 1);
  std::string out;
  Marks marks;
  Joiner joiner(call.runtime, *AsText(call.self));
  for (const Value& item : Elements(call.runtime, args[0])) {
    joiner.BeginPart(out);
    const Value text = IsMarkup(call.self) ? Escaped(call.runtime, item) : item;
    if (const Marks* of_part = MarksOf(call.runtime, text)) marks.Append(*of_part, out.size());
    call.runtime.Append(out, NeedText(text, call.name));
  }
  Value joined = call.runtime.NewTextLike(call.self, std::move(out));
  SetMarks(call.runtime, joined, std::move(marks));
  return joined;
}

Value Format(Call& call) { return FormatBraces(call.runtime, *AsText(call.self), call.arguments); }

// format and replace of Markup: texts that are put in are escaped; the text that replace looks for
// is not.
Value MarkupFormat(Call& call) {
  for (Value& value : call.arguments.positional) value = EscapedArguments(call.runtime, value);
  for (auto& named : call.arguments.named) {
    named.second = EscapedArguments(call.runtime, named.second);
  }
  return call.runtime.NewText(*AsText(Format(call)), /*is_markup=*/true);
}
Value MarkupReplace(Call& call) {
  std::vector<Value>& positional = call.arguments.positional;
  if (positional.size() > 1) positional[1] = EscapedArguments(call.runtime, positional[1]);
  return call.runtime.NewText(*AsText(Replace(call)), /*is_markup=*/true);
}

Value Unsupported(Call& call) {
  Fail("method '{}' of {} is not supported", call.name, TypeName(call.self));
}

// A word of str.title is a run of letters that have a case: "they're" -> "They'Re".
Value Title(Call& call) {
  call.Take({});
  const auto ends_word = [](char32_t c) {
    constexpr unsigned kCased = kUpperOrTitle | kLower;
    return (ClassOf(c) & kCased) == 0;
  };
  return call.runtime.NewTextLike(
      call.self, TitleCase(call.runtime, *AsText(call.self), ends_word, /*is_title=*/true));
}

constexpr Function kTextMethods[] = {
    {"capitalize", Capitalize},
    {"center", Justify<Side::kBoth>},
    {"count", CountText},
    {"endswith", HasAffix<true>},
    {"find", FindText<Side::kLeft, false>},
    {"format", Format},
    {"index", FindText<Side::kLeft, true>},
    {"isalnum", AreAll<kLetter | kNumber>},
    {"isalpha", AreAll<kLetter>},
    {"isascii", IsAscii},
    {"isdecimal", AreAll<kNumber>},
    {"isdigit", AreAll<kNumber>},
    {"islower", IsCased<kLower>},
    {"isnumeric", AreAll<kNumber>},
    {"isspace", IsSpace},
    {"isupper", IsCased<kUpperOrTitle>},
    {"join", JoinTexts},
    {"ljust", Justify<Side::kLeft>},
    {"lower", Lower},
    {"lstrip", StripSide<Side::kLeft>},
    {"partition", Partition<Side::kLeft>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", Replace},
    {"rfind", FindText<Side::kRight, false>},
    {"rindex", FindText<Side::kRight, true>},
    {"rjust", Justify<Side::kRight>},
    {"rpartition", Partition<Side::kRight>},
    {"rsplit", Split<Side::kRight>},
    {"rstrip", StripSide<Side::kRight>},
    {"split", Split<Side::kLeft>},
    {"splitlines", SplitIntoLines},
    {"startswith", HasAffix<false>},
    {"strip", Strip},
    {"title", Title},
    {"upper", Upper},
    {"zfill", FillWithZeros},
};

constexpr Function kMarkupMethods[] = {{"format", MarkupFormat}, {"replace", MarkupReplace}};

// The other methods of Python's str.
constexpr Function kOtherTextMethods[] = {
    {"casefold", Unsupported},   {"encode", Unsupported},       {"expandtabs", Unsupported},
    {"format_map", Unsupported}, {"isidentifier", Unsupported}, {"isprintable", Unsupported},
    {"istitle", Unsupported},    {"maketrans", Unsupported},    {"swapcase", Unsupported},
    {"translate", Unsupported},
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

// Without a default a missing key gives None, which prints as None, and not an undefined value.
Value DictGet(Call& call) {
  const BoundArguments args = call.Take({"key", "default"}, 1);
  const Value* value = Find(call.runtime, *AsDict(call.self), args[0]);
  return value != nullptr ? *value : args.Or(1, None());
}

Value DictCopy(Call& call) {
  call.Take({});
  const auto& items = AsDict(call.self)->items;
  call.runtime.Charge(items.size(), sizeof(items[0]));
  return call.runtime.New(Dict{items});
}

constexpr Function kDictMethods[] = {
    {"clear", nullptr},      {"copy", DictCopy},  {"fromkeys", Unsupported}, {"get", DictGet},
    {"items", DictItems},    {"keys", DictKeys},  {"pop", nullptr},          {"popitem", nullptr},
    {"setdefault", nullptr}, {"update", nullptr}, {"values", DictValues},
};

Value ListIndex(Call& call) {
  const BoundArguments args = call.Take({"value"}, 1);
  const auto& items = AsList(call.self)->items;
  const auto found = std::ranges::find_if(
      items, [&](const Value& item) { return Equal(call.runtime, item, args[0]); });
  if (found == items.end()) Fail("index: the list has no such element");
  return std::int64_t{found - items.begin()};
}

Value ListCount(Call& call) {
  const BoundArguments args = call.Take({"value"}, 1);
  const auto& items = AsList(call.self)->items;
  return std::int64_t{std::ranges::count_if(
      items, [&](const Value& item) { return Equal(call.runtime, item, args[0]); })};
}

Value ListCopy(Call& call) {
  call.Take({});
  return call.runtime.NewList(Elements(call.runtime, call.self));
}

constexpr Function kTupleMethods[] = {{"count", ListCount}, {"index", ListIndex}};
constexpr Function kListMethods[] = {
    {"copy", ListCopy}, {"count", ListCount}, {"index", ListIndex}};

// map(character, is_first, out) appends the mapped character.
template <typename Map>
Value MapCharacters(Call& call, Map map) {
  call.Take({});
  const std::string text = Str(call.runtime, call.self);
  call.runtime.Charge(text.size(), kCaseWork);
  std::string out;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const bool is_first = p == text.data();
    const char32_t c = NextCharacter(p);
    // Only ASCII has cases in llama.cpp.
    c >= 0x80 && call.runtime.is_llama_cpp() ? AppendUtf8(c, &out) : map(c, is_first, out);
  }
  return call.runtime.NewTextLike(call.self, std::move(out));
}

}  // namespace

Value Capitalize(Call& call) { return MapCharacters(call, AppendCapitalized); }

// The filter, whose width may be left out.
Value Center(Call& call) {
  const BoundArguments args = call.Take({"width"});
  const Value text = call.runtime.NewTextLike(call.self, Str(call.runtime, call.self));
  Call method{call.runtime, call.name, text, {{args.Or(0, std::int64_t{80})}, {}}};
  return Justify<Side::kBoth>(method);
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
  const std::string old = Str(call.runtime, args[0]);
  const std::string by = Str(call.runtime, args[1]);
  const std::int64_t limit = args.IsGiven(2) ? args.IntegerOr(2, -1) : -1;
  std::string out;
  Joiner joiner(call.runtime, by);
  if (old.empty()) Fail("replace: an empty text to replace is not supported");
  for (const std::string_view part : SplitAt(call.runtime, text, old, limit)) {
    joiner.BeginPart(out);
    out += part;
  }
  return call.runtime.NewText(std::move(out));
}

Value Strip(Call& call) { return StripSide<Side::kBoth>(call); }

const Function* FindMethod(const Value& object, std::string_view name) {
  if (AsText(object) != nullptr) {
    const Function* method = IsMarkup(object) ? FindFunction(kMarkupMethods, name) : nullptr;
    if (method == nullptr) method = FindFunction(kTextMethods, name);
    return method != nullptr ? method : FindFunction(kOtherTextMethods, name);
  }
  if (AsDict(object) != nullptr) return FindFunction(kDictMethods, name);
  const List* list = AsList(object);
  if (list == nullptr || !list->IsIndexed()) return nullptr;
  if (list->kind == List::kList) return FindFunction(kListMethods, name);
  return FindFunction(kTupleMethods, name);
}

}  // namespace qlora::jinja
