// The filters that fit a text into a place: a column, HTML, an address. Chat templates rarely have
// them. The last table has those of Jinja2 that are refused by name.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "jinja/functions/call.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

// escape: a text that is safe already stays as it is. forceescape: escapes that one, too.
template <bool kForce>
Value Escape(Call& call) {
  call.Take({});
  if (IsMarkup(call.self) && !kForce) return call.self;
  return Escaped(call.runtime, call.runtime.NewText(Str(call.runtime, call.self)));
}

// Cuts behind the last whole word, or with killwords=true anywhere. A text that is longer by the
// leeway stays.
Value Truncate(Call& call) {
  constexpr std::int64_t kLeeway = 5;
  const BoundArguments args = call.Take({"length", "killwords", "end", "leeway"});
  const std::string& text = NeedText(call.self, call.name);
  const std::int64_t length = args.IntegerOr(0, 255);
  const Value end = args.Or(2, call.runtime.NewText("..."));
  const std::int64_t end_length = CountCharacters(NeedText(end, call.name));
  const std::int64_t leeway = args.IsGiven(3) ? args.IntegerOr(3, kLeeway) : kLeeway;
  if (length < end_length) Fail("truncate: expected a length of {} or more", end_length);
  if (leeway < 0) Fail("truncate: the leeway {} is negative", leeway);
  const std::int64_t characters = CountCharacters(text);
  if (characters - leeway <= length) return call.self;
  std::string_view kept = std::string_view(text).substr(0, ByteOffset(text, length - end_length));
  if (!args.Flag(1)) kept = SplitAt(call.runtime, kept, " ", /*limit=*/1, Side::kRight).front();
  return Arithmetic(call.runtime, Operator::kAdd,
                    call.runtime.NewTextLike(call.self, std::string(kept)), end);
}

// Words are runs of letters, digits and underscores.
Value CountWords(Call& call) {
  call.Take({});
  const std::string text = Str(call.runtime, call.self);
  std::int64_t count = 0;
  bool in_word = false;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = NextCharacter(p);
    const bool is_part = c == '_' || (ClassOf(c) & (kLetter | kNumber)) != 0;
    count += is_part && !in_word;
    in_word = is_part;
  }
  return count;
}

// Bytes other than letters, digits, and these as %XX.
std::string Quoted(Runtime& runtime, const Value& value, std::string_view safe) {
  const std::string text = Str(runtime, value);
  runtime.Charge(text.size(), 3);
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_safe =
        (byte < 0x80 && (ClassOf(byte) & (kLetter | kNumber)) != 0) || safe.find(c) != safe.npos;
    if (is_safe) {
      out += c;
    } else {
      fmt::format_to(std::back_inserter(out), "%{:02X}", byte);
    }
  }
  return out;
}

// A text as a part of an address; pairs as its query, "a=1&b=2".
Value UrlEncode(Call& call) {
  constexpr std::string_view kInPath = "/_.-~";
  constexpr std::string_view kInQuery = "_.-~ ";
  call.Take({});
  Runtime& runtime = call.runtime;
  const Dict* dict = AsDict(call.self);
  if (dict == nullptr && AsList(call.self) == nullptr) {
    return runtime.NewText(Quoted(runtime, call.self, kInPath));
  }
  std::string out;
  Joiner joiner(runtime, "&");
  const auto add = [&](const Value& name, const Value& value) {
    joiner.BeginPart(out);
    std::string pair = Quoted(runtime, name, kInQuery) + "=" + Quoted(runtime, value, kInQuery);
    std::ranges::replace(pair, ' ', '+');
    runtime.Append(out, pair);
  };
  if (dict != nullptr) {
    for (const auto& [name, value] : dict->items) add(name, value);
    return runtime.NewText(std::move(out));
  }
  for (const Value& item : Elements(runtime, call.self)) {
    const std::vector<Value> pair = Elements(runtime, item);
    if (pair.size() != 2) Fail("urlencode: expected pairs of name and value");
    add(pair[0], pair[1]);
  }
  return runtime.NewText(std::move(out));
}

// "1.5 kB"; with binary=true "1.5 KiB".
Value FileSize(Call& call) {
  const BoundArguments args = call.Take({"binary"});
  const std::optional<double> bytes = AsNumber(call.self);
  if (!bytes) Fail("filesizeformat: expected a number, found {}", TypeName(call.self));
  const bool is_binary = args.Flag(0);
  const double base = is_binary ? 1024 : 1000;
  if (*bytes == 1) return call.runtime.NewText("1 Byte");
  if (*bytes < base) return call.runtime.NewText(fmt::format("{:.0f} Bytes", std::trunc(*bytes)));
  constexpr std::string_view kBinary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  constexpr std::string_view kDecimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  double unit = base;
  std::size_t i = 0;
  for (; i + 1 < std::size(kDecimal) && *bytes >= unit * base; ++i) unit *= base;
  return call.runtime.NewText(
      fmt::format("{:.1f} {}", *bytes / unit, is_binary ? kBinary[i] : kDecimal[i]));
}

Value Unsupported(Call& call) {
  Fail("filter '{}' is not supported; write a template without it", call.name);
}

constexpr Function kLayoutFilters[] = {
    {"center", Center},           {"e", Escape<false>},          {"escape", Escape<false>},
    {"filesizeformat", FileSize}, {"forceescape", Escape<true>}, {"truncate", Truncate},
    {"urlencode", UrlEncode},     {"wordcount", CountWords},     {"groupby", Unsupported},
    {"pprint", Unsupported},      {"random", Unsupported},       {"striptags", Unsupported},
    {"urlize", Unsupported},      {"wordwrap", Unsupported},     {"xmlattr", Unsupported},
};

}  // namespace

std::span<const Function> LayoutFilters() { return kLayoutFilters; }

}  // namespace qlora::jinja
