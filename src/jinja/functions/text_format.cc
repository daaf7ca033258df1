// The two ways in which Python puts values into a text:
//
//   '%s is %05.1f' % ('x', 2)            printf's conversions, also %(name)s of a dict
//   '{} and {name!r}'.format(1, name=2)  arguments by order, place or name; no format behind a ':'
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/text.h"
#include "jinja/operations.h"
#include "jinja/python_str.h"

namespace qlora::jinja {
namespace {

constexpr int kMaxWidth = 1000;  // bounds the size of one conversion

bool IsOneOf(char c, std::string_view letters) { return letters.find(c) != std::string_view::npos; }

// %[(name)][flags][width][.precision]letter
struct Conversion {
  std::optional<std::string_view> name;
  std::string_view flags;
  int width = 0;
  std::optional<int> precision;
  char letter = 0;
};

// Takes the characters of a kind from the front of `rest`.
std::string_view TakeRun(std::string_view& rest, std::string_view kind) {
  const std::string_view run = rest.substr(0, rest.find_first_not_of(kind));
  rest.remove_prefix(run.size());
  return run;
}

// A width or a precision; no digits are 0. Larger ones are refused, since a few bytes of a template
// must not make much text.
int TakeNumber(std::string_view& rest) {
  const std::string_view digits = TakeRun(rest, "0123456789");
  int number = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (result.ec == std::errc::result_out_of_range || number > kMaxWidth) {
    Fail("'%': a width in the format is too large (limit {})", kMaxWidth);
  }
  return number;
}

Conversion TakeConversion(std::string_view& rest) {
  Conversion c;
  if (rest.starts_with('(')) {
    const std::size_t end = rest.find(')');
    if (end == std::string_view::npos) Fail("'%': a name in the format has no end");
    c.name = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
  }
  c.flags = TakeRun(rest, "-+ 0#");
  c.width = TakeNumber(rest);
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    c.precision = TakeNumber(rest);
  }
  if (rest.empty()) Fail("'%': the format ends within a conversion");
  c.letter = rest.front();
  rest.remove_prefix(1);
  return c;
}

// Leaves the conversion to C, which has the same letters and flags for numbers.
template <typename Number>
std::string Print(const Conversion& c, std::string_view letters, Number number) {
  const std::string precision = c.precision ? "." + std::to_string(*c.precision) : "";
  const std::string format = fmt::format("%{}*{}{}", c.flags, precision, letters);
  std::string out(2 * kMaxWidth, '\0');  // a float has at most 310 digits before the point
  out.resize(std::snprintf(out.data(), out.size(), format.c_str(), c.width, number));
  return out;
}

// Python cuts a float for %d and its like towards zero. It has hexadecimal forms of negative
// integers that C does not have: those are refused.
std::string ConvertNumber(const Conversion& c, const Value& value) {
  const auto number = AsNumber(value);
  if (!number) Fail("'%{}': expected a number, found {}", c.letter, TypeName(value));
  if (IsOneOf(c.letter, "eEfFgG")) return Print(c, {&c.letter, 1}, *number);
  const bool is_decimal = IsOneOf(c.letter, "diu");
  auto integer = AsInteger(value);
  if (!integer && is_decimal && std::fabs(*number) < 0x1p63) {
    integer = static_cast<std::int64_t>(*number);
  }
  const bool is_supported = integer && (is_decimal || *integer >= 0);
  if (!is_supported) Fail("'%{}' of {} is not supported", c.letter, *number);
  return Print(c, is_decimal ? "lld" : fmt::format("ll{}", c.letter),
               static_cast<long long>(*integer));
}

// The width and the precision of a text count characters, which printf does not know.
std::string Convert(Runtime& runtime, const Conversion& c, const Value& value) {
  if (IsOneOf(c.letter, "diuxXoeEfFgG")) return ConvertNumber(c, value);
  if (c.letter != 's' && c.letter != 'r') Fail("'%{}' is not supported", c.letter);
  std::string text;
  c.letter == 's' ? AppendStr(runtime, value, text) : AppendRepr(runtime, value, text);
  if (c.precision) text.resize(ByteOffset(text, *c.precision));
  const std::int64_t missing = std::max<std::int64_t>(c.width - CountCharacters(text), 0);
  return IsOneOf('-', c.flags) ? text + std::string(missing, ' ')
                               : std::string(missing, ' ') + text;
}

// The argument of '{field}'; an empty field takes the next one.
const Value& FormatArgument(const Arguments& arguments, std::string_view field, int& next) {
  int index = next;
  if (field.empty()) {
    ++next;
  } else if (const auto number = ParseNumber<int>(field)) {
    index = *number;
  } else {
    for (const auto& [name, value] : arguments.named) {
      if (name == field) return value;
    }
    Fail("format: there is no argument for '{{{}}}'", field);
  }
  if (index < 0 || index >= std::ssize(arguments.positional)) {
    Fail("format: there are only {} arguments for '{{{}}}'", arguments.positional.size(), field);
  }
  return arguments.positional[index];
}

}  // namespace

// value: a tuple of the values, a dict for %(name)s, or the only value. Each value is used once.
Value FormatPercent(Runtime& runtime, std::string_view format, const Value& value) {
  Dict* dict = AsDict(value);
  const List* list = AsList(value);
  const bool is_tuple = list != nullptr && list->kind == List::kTuple;
  const std::vector<Value> values = is_tuple ? Elements(runtime, value) : std::vector{value};
  std::int64_t used = 0;
  std::string out;
  for (;;) {
    const std::size_t plain = std::min(format.find('%'), format.size());
    runtime.Append(out, format.substr(0, plain));
    format.remove_prefix(plain);
    if (format.empty()) break;
    format.remove_prefix(1);
    runtime.Charge(WorkBudget::kObjectWork);
    const Conversion c = TakeConversion(format);
    if (c.letter == '%') {
      out += '%';
    } else if (c.name) {
      const Value* item = dict == nullptr ? nullptr : FindName(runtime, *dict, *c.name);
      if (item == nullptr) Fail("'%({}){}': there is no such value", *c.name, c.letter);
      runtime.Append(out, Convert(runtime, c, *item));
    } else {
      if (used == std::ssize(values)) Fail("'%': there are only {} values", used);
      runtime.Append(out, Convert(runtime, c, values[used++]));
    }
  }
  if (used < std::ssize(values) && dict == nullptr) {
    Fail("'%': {} values for {} places in the format", values.size(), used);
  }
  return runtime.NewText(std::move(out));
}

// {{ and }} are braces of the text.
Value FormatBraces(Runtime& runtime, std::string_view format, const Arguments& arguments) {
  int next = 0;
  std::string out;
  for (;;) {
    const std::size_t plain = std::min(format.find_first_of("{}"), format.size());
    runtime.Append(out, format.substr(0, plain));
    format.remove_prefix(plain);
    if (format.empty()) return runtime.NewText(std::move(out));
    if (format.starts_with("{{") || format.starts_with("}}")) {
      out += format.front();
      format.remove_prefix(2);
      continue;
    }
    const std::size_t end = format.find('}');
    if (end == 0 || end == std::string_view::npos) Fail("format: a brace without its partner");
    std::string_view field = format.substr(1, end - 1);
    format.remove_prefix(end + 1);
    const bool is_repr = field.ends_with("!r");
    if (is_repr || field.ends_with("!s")) field.remove_suffix(2);
    if (field.find_first_of(":!.[{") != std::string_view::npos) {
      Fail("format: '{{{}}}' is not supported", field);
    }
    runtime.Charge(arguments.named.size() + 1, WorkBudget::kStepWork);
    const Value& value = FormatArgument(arguments, field, next);
    is_repr ? AppendRepr(runtime, value, out) : AppendStr(runtime, value, out);
  }
}

}  // namespace qlora::jinja
