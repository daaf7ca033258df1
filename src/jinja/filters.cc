// The filters of a template that take texts and numbers: `value | name`. Those of sequences are in
// jinja_filters_list.cc.
#include "jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "jinja/python_str.h"
#include "jinja/string_format.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

template <auto kFunction>
Value Mapped(FilterCall& call) {
  call.Take({});
  return call.runtime.MakeText(kFunction(call.Text()));
}

Value Trim(FilterCall& call) {
  const auto args = call.Take({"chars"});
  std::optional<std::string_view> chars;
  if (IsGiven(args[0])) chars = NeedText(*args[0], call.name);
  return call.runtime.MakeText(std::string(Strip(call.Text(), Side::kBoth, chars)));
}

Value ReplaceFilter(FilterCall& call) {
  const auto args = call.Take({"old", "new", "count"}, 2);
  const std::string old = Str(call.runtime, *args[0]);
  const std::string by = Str(call.runtime, *args[1]);
  const std::int64_t limit = IsGiven(args[2]) ? NeedInteger(*args[2], call.name) : -1;
  const std::string text = call.Text();
  call.runtime.Charge(text.size() / std::max<std::size_t>(old.size(), 1) * by.size());
  return call.runtime.MakeText(Replace(text, old, by, limit));
}

Value Indent(FilterCall& call) {
  const auto args = call.Take({"width", "first", "blank"});
  std::string indent(4, ' ');
  if (args[0] && AsText(*args[0]) != nullptr) {
    indent = *AsText(*args[0]);
  } else if (args[0]) {
    const std::int64_t width = std::max<std::int64_t>(NeedInteger(*args[0], call.name), 0);
    call.runtime.Charge(static_cast<std::size_t>(width));
    indent.assign(width, ' ');
  }
  const bool blank = args[2] && Truth(*args[2]);
  const std::string text = NeedText(call.value, call.name) + "\n";
  std::string out = args[1] && Truth(*args[1]) ? indent : "";
  bool first = true;
  for (const std::string_view line : SplitLines(text, /*keep_ends=*/false)) {
    if (!first) out += "\n";
    if (!first && (blank || !line.empty())) out += indent;
    first = false;
    out += line;
    call.runtime.Charge(indent.size() + line.size());
  }
  return call.runtime.MakeText(std::move(out));
}

Value FormatFilter(FilterCall& call) {
  const std::string format = call.Text();
  if (call.arguments.named.empty()) {
    const auto values = call.runtime.NewList(std::move(call.arguments.positional), List::kTuple);
    return FormatPercent(call.runtime, format, values);
  }
  if (!call.arguments.positional.empty()) Fail("format: positional and named arguments together");
  Dict* dict = call.runtime.NewDict();
  for (auto& [name, value] : call.arguments.named) {
    dict->items.emplace_back(call.runtime.MakeText(std::string(name)), value);
  }
  return FormatPercent(call.runtime, format, dict);
}

// The digits of a number in a text as Python reads it: white space around it, '_' between digits.
std::optional<std::string> NumberText(std::string_view text) {
  std::string digits;
  text = Strip(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](std::size_t at) {
      return at < text.size() &&
             (ClassOf(static_cast<unsigned char>(text[at])) & (kLetter | kNumber)) != 0;
    };
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
      return std::nullopt;
    }
  }
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.empty() || digits.front() == '+') return std::nullopt;
  return digits;
}

std::optional<double> ParseFloat(std::string_view text) {
  const auto digits = NumberText(text);
  if (!digits) return std::nullopt;
  double number = 0;
  const char* end = digits->data() + digits->size();
  const auto result = std::from_chars(digits->data(), end, number);
  if (result.ptr != end || digits->find('(') != std::string::npos) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return std::strtod(digits->c_str(), nullptr);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> ParseInteger(std::string_view text, int base) {
  auto digits = NumberText(text);
  if (!digits) return std::nullopt;
  const bool negative = digits->starts_with('-');
  if (negative) digits->erase(0, 1);
  const char letter = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '0';
  if (letter != '0' && digits->size() > 2 && (*digits)[0] == '0' && ((*digits)[1] | 32) == letter) {
    digits->erase(0, 2);
  }
  std::int64_t number = 0;
  const char* end = digits->data() + digits->size();
  if (digits->starts_with('-')) return std::nullopt;
  const auto result = std::from_chars(digits->data(), end, number, base);
  if (result.ec == std::errc::result_out_of_range) Fail("the number {} is too large", *digits);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return negative ? -number : number;
}

std::optional<double> ToFloat(const Value& value) {
  if (const auto* undefined = std::get_if<Undefined>(&value)) FailUndefined(*undefined);
  if (const std::string* text = AsText(value)) return ParseFloat(*text);
  return AsNumber(value);
}

Value IntFilter(FilterCall& call) {
  const auto args = call.Take({"default", "base"});
  if (const auto integer = AsInteger(call.value)) return *integer;
  if (const std::string* text = AsText(call.value)) {
    const std::int64_t base = args[1] ? NeedInteger(*args[1], call.name) : 10;
    if (base < 2 || base > 36) Fail("int: base {} is not supported", base);
    if (const auto integer = ParseInteger(*text, static_cast<int>(base))) return *integer;
  }
  const auto number = ToFloat(call.value);
  if (number && std::isfinite(*number)) {
    if (std::fabs(*number) >= 0x1p63) Fail("the number {} is too large", *number);
    return static_cast<std::int64_t>(*number);
  }
  return args[0].value_or(std::int64_t{0});
}

Value FloatFilter(FilterCall& call) {
  const auto args = call.Take({"default"});
  if (const auto number = ToFloat(call.value)) return *number;
  return args[0].value_or(0.0);
}

Value Absolute(FilterCall& call) {
  call.Take({});
  const auto number = ToFloat(call.value);
  if (!number || AsText(call.value) != nullptr) {
    Fail("abs: expected a number, found {}", TypeName(call.value));
  }
  if (std::signbit(*number)) return Negate(call.value);
  return AsInteger(call.value) ? Value(*AsInteger(call.value)) : call.value;
}

// `value` rounded to `digits` decimals, a tie of the exact value to the even digit.
double RoundDecimal(double value, std::int64_t digits) {
  if (digits < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(value / unit) * unit;
  }
  return std::strtod(fmt::format("{:.{}f}", value, std::min<std::int64_t>(digits, 400)).c_str(),
                     nullptr);
}

Value Round(FilterCall& call) {
  const auto args = call.Take({"precision", "method"});
  const std::int64_t digits = args[0] ? NeedInteger(*args[0], call.name) : 0;
  const std::string method = args[1] ? NeedText(*args[1], call.name) : "common";
  const auto number = AsNumber(call.value);
  if (!number) Fail("round: expected a number, found {}", TypeName(call.value));
  if (method == "common") {
    if (AsInteger(call.value) && digits >= 0) return *AsInteger(call.value);
    const double rounded = std::isfinite(*number) ? RoundDecimal(*number, digits) : *number;
    if (AsInteger(call.value)) return static_cast<std::int64_t>(rounded);
    return rounded;
  }
  if (method != "ceil" && method != "floor") Fail("round: method '{}' does not exist", method);
  const double unit = std::pow(10.0, static_cast<double>(digits));
  return (method == "ceil" ? std::ceil(*number * unit) : std::floor(*number * unit)) / unit;
}

Value DefaultFilter(FilterCall& call) {
  const auto args = call.Take({"default_value", "boolean"});
  const bool boolean = args[1] && Truth(*args[1]);
  if (!IsUndefined(call.value) && (!boolean || Truth(call.value))) return call.value;
  return args[0] ? *args[0] : call.runtime.MakeText("");
}

Value ToJson(FilterCall& call) {
  const auto args = call.Take({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = args[0] && Truth(*args[0]);
  style.sort_keys = args[3] && Truth(*args[3]);
  if (IsGiven(args[1])) {
    if (const std::string* text = AsText(*args[1])) {
      style.indent = *text;
    } else {
      const std::int64_t width = std::max<std::int64_t>(NeedInteger(*args[1], call.name), 0);
      call.runtime.Charge(static_cast<std::size_t>(width));
      style.indent = std::string(static_cast<std::size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (IsGiven(args[2])) {
    const std::vector<Value> parts = Elements(call.runtime, *args[2]);
    if (parts.size() != 2) Fail("tojson: expected two separators, found {}", parts.size());
    style.item_separator = NeedText(parts[0], call.name);
    style.key_separator = NeedText(parts[1], call.name);
  }
  return call.runtime.MakeText(DumpJson(call.runtime, call.value, style));
}

constexpr FilterEntry kFilters[] = {
    {"abs", Absolute},
    {"capitalize", Mapped<Capitalize>},
    {"d", DefaultFilter},
    {"default", DefaultFilter},
    {"float", FloatFilter},
    {"format", FormatFilter},
    {"indent", Indent},
    {"int", IntFilter},
    {"lower", Mapped<Lower>},
    {"replace", ReplaceFilter},
    {"round", Round},
    {"safe", [](FilterCall& c) { return c.runtime.MakeText(c.Text()); }},
    {"string", [](FilterCall& c) { return c.runtime.MakeText(c.Text()); }},
    {"title", Mapped<TitleAtSeparators>},
    {"tojson", ToJson},
    {"trim", Trim},
    {"upper", Mapped<Upper>},
};

const FilterEntry* FindFilter(std::string_view name) {
  for (const auto& table : {std::span<const FilterEntry>(kFilters), ListFilters()}) {
    for (const FilterEntry& entry : table) {
      if (entry.name == name) return &entry;
    }
  }
  return nullptr;
}

}  // namespace

Value ApplyFilter(Runtime& runtime, std::string_view name, const Value& value,
                  Arguments arguments) {
  const FilterEntry* entry = FindFilter(name);
  if (entry == nullptr) Fail("filter '{}' is not supported", name);
  FilterCall call{runtime, name, value, std::move(arguments)};
  return entry->function(call);
}

}  // namespace qlora::jinja
