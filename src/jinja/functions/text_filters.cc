// The filters of texts, of numbers and of any value, `value | name(arguments)`.
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "io/pattern.h"
#include "jinja/functions/call.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"

namespace qlora::jinja {
namespace {

// A width as spaces, or the text itself: the argument of indent and of tojson(indent=...).
std::string Indentation(Runtime& runtime, const Value& value, std::string_view use) {
  if (const std::string* text = AsText(value)) return *text;
  const std::int64_t width = std::max<std::int64_t>(NeedInteger(value, use), 0);
  runtime.Charge(static_cast<std::size_t>(width));
  return std::string(width, ' ');
}

// Puts spaces before each line but the first and the empty ones, which first=true and blank=true
// include. A line end at the end stays: 'a\n' has an empty last line.
Value Indent(Call& call) {
  const BoundArguments args = call.Take({"width", "first", "blank"});
  const std::string indent = Indentation(call.runtime, args.Or(0, std::int64_t{4}), call.name);
  const std::string text = NeedText(call.self, call.name) + "\n";
  std::string out;
  bool first = true;
  for (const std::string_view line : SplitLines(call.runtime, text)) {
    if (!first) out += '\n';
    const bool indented = first ? args.Flag(1) : args.Flag(2) || !line.empty();
    if (indented) call.runtime.Append(out, indent);
    first = false;
    out += line;
  }
  return call.runtime.NewTextLike(call.self, std::move(out));
}

// Words end at white space and at opening brackets and dashes, unlike words of str.title.
Value TitleFilter(Call& call) {
  call.Take({});
  const auto ends_word = [](char32_t c) {
    return IsPythonSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  const std::string text = Str(call.runtime, call.self);
  return call.runtime.NewText(TitleCase(call.runtime, text, ends_word, /*is_title=*/false));
}

// A text, also one that is marked as safe, stays as it is.
Value String(Call& call) {
  call.Take({});
  return call.runtime.NewTextLike(call.self, Str(call.runtime, call.self));
}

Value Safe(Call& call) {
  call.Take({});
  return call.runtime.NewText(Str(call.runtime, call.self), /*is_markup=*/true);
}

// The number that the whole of `text` spells, as Python reads it: " +1_000 " is 1000.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  std::string digits;
  text = StripText(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.starts_with('_') || text.ends_with('_')) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_' || text[i + 1] == '_') digits += text[i];
  }
  Number number = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, number);
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    if constexpr (std::is_floating_point_v<Number>) return std::strtod(digits.c_str(), nullptr);
    Fail("the number {} is too large", text);
  }
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

// nullopt for a text that is not a number, and for values that are neither text nor number.
std::optional<double> ToFloat(const Value& value) {
  NeedDefined(value);
  const std::string* text = AsText(value);
  return text != nullptr ? ParseNumber<double>(*text) : AsNumber(value);
}

// Cuts a float towards zero; a value that is not a number gives the default, not an error, as does
// a text that spells an infinite one.
Value Int(Call& call) {
  const BoundArguments args = call.Take({"default"});
  if (const auto integer = AsInteger(call.self)) return *integer;
  if (const std::string* text = AsText(call.self)) {
    if (const auto integer = ParseNumber<std::int64_t>(*text)) return *integer;
  }
  const auto number = ToFloat(call.self);
  const bool is_infinite_text = number && std::isinf(*number) && AsText(call.self) != nullptr;
  if (!number || std::isnan(*number) || is_infinite_text) return args.Or(0, std::int64_t{0});
  if (std::fabs(*number) >= 0x1p63) Fail("the number {} is too large", *number);
  return static_cast<std::int64_t>(*number);
}

Value Float(Call& call) {
  const BoundArguments args = call.Take({"default"});
  if (const auto number = ToFloat(call.self)) return *number;
  return args.Or(0, 0.0);
}

// Keeps the type: an integer stays one.
Value Absolute(Call& call) {
  call.Take({});
  const auto number = AsNumber(call.self);
  if (!number) Fail("abs: expected a number, found {}", TypeName(call.self));
  const std::int64_t sign = std::signbit(*number) ? -1 : 1;
  return Arithmetic(call.runtime, Operator::kMultiply, call.self, sign);
}

// Rounds a tie of the exact decimal value to the even digit, as Python does: round(2.5) = 2. The
// methods ceil and floor multiply by 10^precision, as Jinja does, with the error of that product.
Value Round(Call& call) {
  const BoundArguments args = call.Take({"precision", "method"});
  const std::int64_t digits = args.IntegerOr(0, 0);
  const std::string method = args.Has(1) ? args.NeedTextAt(1) : "common";
  const auto number = AsNumber(call.self);
  if (!number) Fail("round: expected a number, found {}", TypeName(call.self));
  if (digits < -300 || digits > 300) Fail("round: {} digits are not supported", digits);
  const double unit = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return std::ceil(*number * unit) / unit;
  if (method == "floor") return std::floor(*number * unit) / unit;
  if (method != "common") Fail("round: method '{}' does not exist", method);
  const auto integer = AsInteger(call.self);
  if (integer && digits >= 0) return *integer;
  call.runtime.Charge(static_cast<std::size_t>(std::abs(digits)) * WorkBudget::kStepWork);
  if (digits >= 0) return std::strtod(fmt::format("{:.{}f}", *number, digits).c_str(), nullptr);
  const double tens = std::pow(10.0, static_cast<double>(-digits));
  const double rounded = std::nearbyint(*number / tens) * tens;
  return integer ? Value(static_cast<std::int64_t>(rounded)) : Value(rounded);
}

// format | format(values): format % values; with named arguments format % {name: value}.
Value FormatFilter(Call& call) {
  auto& [positional, named] = call.arguments;
  if (!positional.empty() && !named.empty())
    Fail("format: positional and named arguments together");
  const Value format = call.runtime.NewTextLike(call.self, Str(call.runtime, call.self));
  Dict* dict = call.runtime.New<Dict>();
  for (const auto& [name, value] : named) {
    Insert(call.runtime, *dict, call.runtime.NewText(std::string(name)), value);
  }
  const Value values = call.runtime.NewList(std::move(positional), List::kTuple);
  return Arithmetic(call.runtime, Operator::kModulo, format, named.empty() ? values : Value(dict));
}

// Replaces undefined values; with boolean=true all false ones.
Value Default(Call& call) {
  const BoundArguments args = call.Take({"default_value", "boolean"});
  const bool is_undefined =
      IsUndefined(call.self) || (IsNone(call.self) && call.runtime.is_llama_cpp());
  const bool is_missing = args.Flag(1) ? !Truth(call.self) : is_undefined;
  if (!is_missing) return call.self;
  return args.Has(0) ? args[0] : call.runtime.NewText("");
}

// re.sub, which templates of evaluation tasks have, with a replacement that holds no group.
Value RegexReplace(Call& call) {
  if (!call.runtime.is_strict()) Fail("filter 'regex_replace' is not supported");
  const BoundArguments args = call.Take({"pattern", "replacement"}, 2);
  const std::string replacement = args.NeedTextAt(1);
  if (replacement.find('\\') != std::string::npos) {
    Fail("regex_replace: groups and escapes in the replacement are not supported, found '{}'",
         replacement);
  }
  return call.runtime.NewText(
      ReplaceMatches(args.NeedTextAt(0), replacement, NeedText(call.self, call.name), call.name));
}

// json.dumps(value, ensure_ascii=False), as transformers defines this filter; Jinja's own filter
// escapes for HTML.
Value ToJson(Call& call) {
  const BoundArguments args = call.Take({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = args.Flag(0);
  style.sort_keys = args.Flag(3);
  if (args.IsGiven(1)) {
    style.indent = Indentation(call.runtime, args[1], call.name);
    style.item_separator = ",";
  }
  if (args.IsGiven(2)) {
    const std::vector<Value> parts = Elements(call.runtime, args[2]);
    if (parts.size() != 2) Fail("tojson: expected two separators, found {}", parts.size());
    style.item_separator = NeedText(parts[0], call.name);
    style.key_separator = NeedText(parts[1], call.name);
  }
  return DumpJson(call.runtime, call.self, style);
}

constexpr Function kTextFilters[] = {
    {"abs", Absolute},      {"capitalize", Capitalize},
    {"d", Default},         {"default", Default},
    {"float", Float},       {"format", FormatFilter},
    {"indent", Indent},     {"int", Int},
    {"lower", Lower},       {"regex_replace", RegexReplace},
    {"replace", Replace},   {"round", Round},
    {"safe", Safe},         {"string", String},
    {"title", TitleFilter}, {"tojson", ToJson},
    {"trim", Strip},        {"upper", Upper},
};

}  // namespace

std::span<const Function> TextFilters() { return kTextFilters; }

}  // namespace qlora::jinja
