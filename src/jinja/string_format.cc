#include "jinja/string_format.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 1000;

// One conversion behind '%': %[(name)][flags][width][.precision]letter.
struct Conversion {
  std::string_view name;
  bool left = false;
  std::string flags;  // of + space 0 #
  int width = 0;
  int precision = -1;
  char letter = 0;
};

class ConversionReader {
 public:
  explicit ConversionReader(std::string_view text) : text_(text) {}

  // Moves `at` behind the conversion.
  Conversion Read(std::size_t& at) {
    Conversion c;
    if (Peek(at) == '(') {
      const std::size_t end = text_.find(')', at);
      if (end == std::string_view::npos) Fail("'%': a name in a format has no end");
      c.name = text_.substr(at + 1, end - at - 1);
      at = end + 1;
    }
    constexpr std::string_view kFlags = "-+ 0#";
    for (; at < text_.size() && kFlags.find(text_[at]) != std::string_view::npos; ++at) {
      if (text_[at] == '-') {
        c.left = true;
      } else if (c.flags.find(text_[at]) == std::string::npos) {
        c.flags += text_[at];
      }
    }
    c.width = Number(at);
    if (Peek(at) == '.') c.precision = Number(++at);
    c.letter = Peek(at++);
    return c;
  }

 private:
  char Peek(std::size_t at) const {
    if (at >= text_.size()) Fail("'%': a format ends within a conversion");
    return text_[at];
  }

  int Number(std::size_t& at) const {
    std::int64_t number = 0;
    for (; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at) {
      number = number * 10 + (text_[at] - '0');
      if (number > kMaxWidth) Fail("'%': a width in a format is too large");
    }
    return static_cast<int>(number);
  }

  std::string_view text_;
};

template <typename Number>
std::string Print(const Conversion& c, std::string_view length, char letter, Number number) {
  std::string format = "%" + c.flags + (c.left ? "-" : "") + "*";
  if (c.precision >= 0) format += "." + std::to_string(c.precision);
  format.append(length) += letter;
  std::string out(static_cast<std::size_t>(kMaxWidth) * 2, '\0');
  const int size = std::snprintf(out.data(), out.size(), format.c_str(), c.width, number);
  out.resize(std::min(static_cast<std::size_t>(std::max(size, 0)), out.size() - 1));
  return out;
}

std::string Convert(Runtime& runtime, const Conversion& c, const Value& value) {
  constexpr std::string_view kIntegers = "diuxXo";
  constexpr std::string_view kFloats = "eEfFgG";
  if (kIntegers.find(c.letter) != std::string_view::npos) {
    auto integer = AsInteger(value);
    if (const double* number = std::get_if<double>(&value); number != nullptr && c.letter != 'x' &&
                                                            c.letter != 'X' && c.letter != 'o' &&
                                                            *number > -9e18 && *number < 9e18) {
      integer = static_cast<std::int64_t>(*number);
    }
    if (!integer) Fail("'%{}': expected a number, found {}", c.letter, TypeName(value));
    const bool decimal = c.letter == 'd' || c.letter == 'i' || c.letter == 'u';
    if (!decimal && *integer < 0) Fail("'%{}' of a negative number is not supported", c.letter);
    return Print(c, "ll", decimal ? 'd' : c.letter, static_cast<long long>(*integer));
  }
  if (kFloats.find(c.letter) != std::string_view::npos) {
    const auto number = AsNumber(value);
    if (!number) Fail("'%{}': expected a number, found {}", c.letter, TypeName(value));
    return Print(c, "", c.letter, *number);
  }
  if (c.letter != 's' && c.letter != 'r') Fail("'%{}' is not supported", c.letter);
  std::string text;
  c.letter == 's' ? AppendStr(runtime, value, text) : AppendRepr(runtime, value, text);
  if (c.precision >= 0) text.resize(ByteOffset(text, c.precision));
  const std::int64_t missing = c.width - CountCharacters(text);
  const std::string padding(static_cast<std::size_t>(std::max<std::int64_t>(missing, 0)), ' ');
  return c.left ? text + padding : padding + text;
}

}  // namespace

Value FormatPercent(Runtime& runtime, std::string_view format, const Value& value) {
  const List* list = AsList(value);
  const bool is_tuple = list != nullptr && list->kind == List::kTuple;
  const std::vector<Value> items = is_tuple ? list->items : std::vector<Value>{value};
  std::string out;
  std::size_t used = 0;
  bool named = false;
  ConversionReader reader(format);
  for (std::size_t at = 0; at < format.size();) {
    const std::size_t next = std::min(format.find('%', at), format.size());
    out += format.substr(at, next - at);
    if (next == format.size()) break;
    at = next + 1;
    const Conversion c = reader.Read(at);
    if (c.letter == '%') {
      out += '%';
    } else if (!c.name.empty()) {
      named = true;
      Dict* dict = AsDict(value);
      const Value* item = dict == nullptr ? nullptr : Find(*dict, c.name);
      if (item == nullptr) Fail("'%({}){}': there is no such value", c.name, c.letter);
      out += Convert(runtime, c, *item);
    } else {
      if (used == items.size()) Fail("'%': not enough values for the format");
      out += Convert(runtime, c, items[used++]);
    }
  }
  if (used < items.size() && !named && AsDict(value) == nullptr) {
    Fail("'%': more values than the format has places");
  }
  return runtime.MakeText(std::move(out));
}

Value FormatBraces(Runtime& runtime, std::string_view format, const Arguments& arguments) {
  std::string out;
  std::size_t automatic = 0;
  const auto find = [&](std::string_view name) -> const Value& {
    std::size_t index = automatic;
    if (name.empty()) {
      ++automatic;
    } else {
      const auto result = std::from_chars(name.data(), name.data() + name.size(), index);
      if (result.ec != std::errc() || result.ptr != name.data() + name.size()) {
        for (const auto& [key, value] : arguments.named) {
          if (key == name) return value;
        }
        Fail("format: there is no value for '{{{}}}'", name);
      }
    }
    if (index >= arguments.positional.size()) Fail("format: not enough values");
    return arguments.positional[index];
  };
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (at + 1 < format.size() && format[at + 1] == c) {
      out += format[at++];
      continue;
    }
    const std::size_t end = format.find('}', at);
    if (c == '}' || end == std::string_view::npos) Fail("format: a brace without its partner");
    std::string_view field = format.substr(at + 1, end - at - 1);
    bool repr = false;
    if (field.ends_with("!s") || field.ends_with("!r")) {
      repr = field.back() == 'r';
      field.remove_suffix(2);
    }
    if (field.find_first_of(":!.[{") != std::string_view::npos) {
      Fail("format: '{{{}}}' is not supported", field);
    }
    const Value& value = find(field);
    repr ? AppendRepr(runtime, value, out) : AppendStr(runtime, value, out);
    at = end;
  }
  return runtime.MakeText(std::move(out));
}

}  // namespace qlora::jinja
