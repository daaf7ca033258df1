#include "io/json.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "io/foreign_content.h"

namespace qlora {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// Returns the reason in a message of the library, which puts "[json.exception.parse_error.101]
// parse error at line 1, column 2: " before it. What the message quotes of the text may be long.
std::string ReasonOf(std::string_view text) {
  const std::size_t name = text.find("] ");
  if (name != std::string_view::npos) text.remove_prefix(name + 2);
  const std::size_t column = text.find("column ");
  const std::size_t colon = column == std::string_view::npos ? column : text.find(": ", column);
  if (colon != std::string_view::npos) text.remove_prefix(colon + 2);
  std::string whole;
  const std::size_t quote = text.rfind('\'');
  if (quote != text.npos && quote > 0 && static_cast<unsigned char>(text[quote - 1]) >= 0xC0) {
    // What was read last ends within a character.
    whole = fmt::format("{}{}", text.substr(0, quote - 1), text.substr(quote));
    text = whole;
  }
  constexpr std::size_t kMost = 200;
  return fmt::format("{}{}", FirstBytes(text, kMost), text.size() > kMost ? "..." : "");
}

// Builds a value as the library does, but for whole numbers beyond 64 bits, which the library takes
// for floats.
class WideBuilder : public OrderedJson::json_sax_t {
 public:
  explicit WideBuilder(OrderedJson& value) : places_{&value} { value = nullptr; }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    const bool is_whole = text.find_first_of(".eE") == text.npos;
    return Put(is_whole ? WideInteger(text) : OrderedJson(value));
  }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(OrderedJson::object()); }
  bool key(string_t& key) override {
    key_ = std::move(key);
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(OrderedJson::array()); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t, const std::string&, const OrderedJson::exception&) override {
    return false;
  }

 private:
  // The place of the next value.
  OrderedJson& Next() {
    OrderedJson& place = *places_.back();
    if (place.is_array()) return place.emplace_back();
    return place.is_object() ? place[key_] : place;
  }
  bool Put(OrderedJson value) {
    Next() = std::move(value);
    return true;
  }
  bool Open(OrderedJson value) {
    OrderedJson& place = Next();
    place = std::move(value);
    places_.push_back(&place);
    return true;
  }
  bool Close() {
    places_.pop_back();
    return true;
  }

  std::vector<OrderedJson*> places_;  // the value, and what is open within it
  std::string key_;
};

struct JsonLimits {
  std::int64_t keys = kNoLimit;  // of one object
  std::int64_t values = kMaxJsonValues;
};

// What a text holds outside of strings, up to the first byte that exceeds a limit.
struct JsonScan {
  std::int64_t values = 0;
  std::int64_t keys = 0;
  bool may_be_wide = false;  // as many digits in a row as 64 bits may not hold
};

// Finds the first byte where `text` exceeds a limit. A scan of brackets, commas and colons outside
// of strings is enough: it can only be wrong about a text that the parser refuses.
std::optional<JsonDefect> FindExcess(std::string_view text, const JsonLimits& limits,
                                     JsonScan& scan) {
  constexpr int kWideDigits = 19;
  // Checked before parsing: a text within the limits can neither exhaust the stack nor take
  // quadratic time.
  std::array<std::int64_t, kMaxJsonDepth> keys = {};  // of each open list or object
  int depth = 0;
  int digits = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      // Skips the escaped character, which may be a quote.
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    if (c == '"') {
      in_string = true;
      continue;
    }
    // The parser would take a zero byte for the end of the text.
    if (c == '\0') return JsonDefect{i, "a zero byte"};
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    scan.may_be_wide = scan.may_be_wide || digits == kWideDigits;
    // A comma comes before each value but the first of its list or object.
    const bool opens = c == '{' || c == '[';
    if ((opens || c == ',') && ++scan.values > limits.values) {
      return JsonDefect{i, fmt::format("more than {} values", limits.values)};
    }
    if (opens) {
      if (depth == kMaxJsonDepth) {
        return JsonDefect{i, fmt::format("nested more than {} levels deep", kMaxJsonDepth)};
      }
      keys[depth++] = 0;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    } else if (c == ':' && depth > 0) {
      ++scan.keys;
      if (++keys[depth - 1] > limits.keys) {
        return JsonDefect{i, fmt::format("an object has more than {} keys", limits.keys)};
      }
    }
  }
  return std::nullopt;
}

// Returns the position of the number that overflows, which the library quotes instead of naming a
// byte.
std::size_t OffsetOfQuoted(std::string_view message, std::string_view text) {
  const std::size_t begin = message.find('\'');
  const std::size_t end = message.rfind('\'');
  if (begin >= end) return 0;
  // The first number with these digits: an equal one before it would overflow as well.
  const std::size_t offset = text.find(message.substr(begin + 1, end - begin - 1));
  return offset == std::string_view::npos ? 0 : offset;
}

// Throws bad_alloc here, where it can be caught, if the values cannot have their memory: the
// library's destructors allocate as well, and a failure there ends the process.
void CheckRoom(std::string_view text, std::int64_t values) {
  constexpr std::size_t kValueBytes = 128;  // with its share of the destructor's list
  constexpr std::int64_t kFew = 1 << 12;
  if (values < kFew) return;
  // Memory that is not touched costs nothing but its addresses.
  const std::size_t bytes = static_cast<std::size_t>(values) * kValueBytes + 4 * text.size();
  ::operator delete(::operator new(bytes));
}

template <typename Value>
std::optional<JsonDefect> Parse(std::string_view text, const JsonLimits& limits, Value& value) {
  JsonScan scan;
  if (auto excess = FindExcess(text, limits, scan)) return excess;
  CheckRoom(text, scan.values);
  try {
    value = Value::parse(text);
    if constexpr (std::is_same_v<Value, OrderedJson>) {
      if (scan.may_be_wide) {
        WideBuilder builder(value);
        OrderedJson::sax_parse(text, &builder);
      }
    }
  } catch (const typename Value::parse_error& error) {
    // The library counts bytes from 1, and names the end of the text as one byte behind it.
    const std::size_t offset = error.byte == 0 ? 0 : std::min(error.byte - 1, text.size());
    return JsonDefect{offset, ReasonOf(error.what())};
  } catch (const typename Value::exception& error) {  // a number that no double can hold
    return JsonDefect{OffsetOfQuoted(error.what(), text), ReasonOf(error.what())};
  }
  return std::nullopt;
}

// Returns "line 3, column 14" of the byte at `offset`.
std::string PlaceOf(std::string_view text, std::size_t offset) {
  // Columns count bytes, as editors do for ASCII, which JSON mostly is.
  const std::string_view before = text.substr(0, offset);
  std::size_t line = 1;
  for (const char c : before) line += c == '\n';
  const std::size_t start = before.rfind('\n');
  return fmt::format("line {}, column {}", line,
                     start == std::string_view::npos ? offset + 1 : offset - start);
}

[[noreturn]] void ThrowDefect(std::string_view text, std::string_view where,
                              const JsonDefect& defect) {
  ThrowInvalidInput("{}: not valid JSON at {} (byte {}): {}{}", where, PlaceOf(text, defect.offset),
                    defect.offset, defect.reason, ForeignContent(text));
}

// Finds a key that an object has twice. (A callback of the library's parser would take time that
// grows with the square of the keys of an object.)
class DuplicateFinder : public Json::json_sax_t {
 public:
  std::optional<std::string> found;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    open_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool key(string_t& key) override {
    const auto [place, is_new] = open_.back().insert(std::move(key));
    if (!is_new) found = *place;
    return is_new;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;  // the parse before has named it
  }

 private:
  std::vector<std::unordered_set<std::string>> open_;
};

void RefuseDuplicates(std::string_view text, std::string_view where) {
  DuplicateFinder finder;
  Json::sax_parse(text, &finder);
  if (finder.found) ThrowInvalidInput("{}: key '{}' appears twice", where, *finder.found);
}

std::int64_t CountKeys(const OrderedJson& value) {
  if (!value.is_structured()) return 0;
  std::int64_t keys = value.is_object() ? std::ssize(value) : 0;
  for (const OrderedJson& inner : value) keys += CountKeys(inner);
  return keys;
}

// Returns the name of the kind of values that T can hold; nothing when `value` is one of them.
template <typename T>
const char* OtherKind(const Json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean() ? nullptr : "true or false";
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    // Numbers above 2^63 - 1 are integers too, but would turn negative.
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
    return fits ? nullptr : "an integer";
  } else if constexpr (std::is_same_v<T, double>) {
    return value.is_number() ? nullptr : "a number";
  } else {
    return value.is_string() ? nullptr : "a string";
  }
}

// Returns a short form of a value for messages. Lists and objects may be deep, so only their kind
// is named.
std::string Shown(const Json& value) {
  if (value.is_structured()) return fmt::format("an {}", value.type_name());
  std::string text = FormatJson(value);
  return text.size() > 60 ? text.substr(0, 60) + " ..." : text;
}

bool HasWideInteger(const OrderedJson& value) {
  return value.is_binary() || (value.is_structured() && std::ranges::any_of(value, HasWideInteger));
}

// As dump(), which writes a number beyond 64 bits as an object of its bytes.
void AppendWithDigits(const OrderedJson& value, int indent, int level, std::string& out) {
  if (!value.is_structured() || value.empty()) {
    out += value.is_binary() ? DigitsOf(value) : FormatJson(value);
    return;
  }
  const auto break_line = [&](int levels) {
    if (indent >= 0) out.append("\n").append(static_cast<std::size_t>(indent * levels), ' ');
  };
  const bool is_object = value.is_object();
  out += is_object ? '{' : '[';
  const std::size_t begin = out.size();
  for (const auto& [key, item] : value.items()) {
    if (out.size() > begin) out += ',';
    break_line(level);
    if (is_object) out += FormatJson(OrderedJson(key)) + (indent >= 0 ? ": " : ":");
    AppendWithDigits(item, indent, level + 1, out);
  }
  break_line(level - 1);
  out += is_object ? '}' : ']';
}

template <typename T>
T ScalarAs(const Json& value, std::string_view key, std::string_view where) {
  if (const char* expected = OtherKind<T>(value)) {
    ThrowInvalidInput("{}: key '{}': expected {}, found {}", where, key, expected, Shown(value));
  }
  return value.get<T>();
}

}  // namespace

OrderedJson WideInteger(std::string_view digits) {
  return OrderedJson::binary({digits.begin(), digits.end()});
}

std::string DigitsOf(const OrderedJson& value) {
  if (!value.is_binary()) return {};
  return {value.get_binary().begin(), value.get_binary().end()};
}

std::optional<JsonDefect> TryParseJson(std::string_view text, OrderedJson& value,
                                       std::int64_t max_values) {
  return Parse(text, {.keys = kMaxOrderedKeys, .values = max_values}, value);
}

std::optional<std::string> FindDuplicateKey(std::string_view text, const OrderedJson& value) {
  JsonScan scan;
  FindExcess(text, {}, scan);
  if (scan.keys == CountKeys(value)) return std::nullopt;
  DuplicateFinder finder;
  Json::sax_parse(text, &finder);
  return finder.found;
}

OrderedJson ParseOrderedJson(std::string_view text, std::string_view where,
                             DuplicateKeys duplicates) {
  OrderedJson value;
  if (const auto defect = TryParseJson(text, value)) ThrowDefect(text, where, *defect);
  if (duplicates == DuplicateKeys::kRefuse) RefuseDuplicates(text, where);
  return value;
}

std::optional<JsonDefect> TryParseJson(std::string_view text, Json& value) {
  return Parse(text, {}, value);
}

Json ParseJson(std::string_view text, std::string_view where, DuplicateKeys duplicates) {
  Json value;
  if (const auto defect = TryParseJson(text, value)) ThrowDefect(text, where, *defect);
  // A second pass, but only over headers and configurations, which decide how data are read.
  if (duplicates == DuplicateKeys::kRefuse) RefuseDuplicates(text, where);
  return value;
}

Json ReadJsonFile(const std::filesystem::path& path) {
  return ParseJson(ReadTextFile(path), path.string());
}

const Json* FindJson(const Json& object, std::string_view key, std::string_view where) {
  if (!object.is_object()) {
    ThrowInvalidInput("{}: expected a JSON object with key '{}', found {}", where, key,
                      object.type_name());
  }
  const auto found = object.find(std::string(key));
  // null counts as absent: Python writes None for keys that are not set.
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

template <typename T>
T JsonAs(const Json& value, std::string_view key, std::string_view where) {
  if constexpr (!std::is_arithmetic_v<T> && !std::is_same_v<T, std::string>) {
    if (!value.is_array()) {
      ThrowInvalidInput("{}: key '{}': expected a list, found {}", where, key, Shown(value));
    }
    T out;
    out.reserve(value.size());
    for (const Json& item : value) {
      out.push_back(ScalarAs<typename T::value_type>(item, key, where));
    }
    return out;
  } else {
    return ScalarAs<T>(value, key, where);
  }
}

template <typename T>
T JsonGet(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = FindJson(object, key, where);
  if (value == nullptr) ThrowInvalidInput("{}: key '{}' is missing", where, key);
  return JsonAs<T>(*value, key, where);
}

#define QLORA_JSON_TYPE(T)                                               \
  template T JsonAs<T>(const Json&, std::string_view, std::string_view); \
  template T JsonGet<T>(const Json&, std::string_view, std::string_view)
QLORA_JSON_TYPE(bool);
QLORA_JSON_TYPE(std::int64_t);
QLORA_JSON_TYPE(double);
QLORA_JSON_TYPE(std::string);
QLORA_JSON_TYPE(std::vector<bool>);
QLORA_JSON_TYPE(std::vector<std::int64_t>);
QLORA_JSON_TYPE(std::vector<double>);
QLORA_JSON_TYPE(std::vector<std::string>);
#undef QLORA_JSON_TYPE

std::string FormatJson(const Json& value, int indent) {
  // Text that is not UTF-8, such as a path, becomes U+FFFD instead of an exception in a report.
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string FormatJson(const OrderedJson& value, int indent) {
  if (!HasWideInteger(value)) {
    return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
  }
  std::string text;
  AppendWithDigits(value, indent, /*level=*/1, text);
  return text;
}

std::string TextOrJson(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : FormatJson(value);
}

bool ForEachText(const OrderedJson& value, const TextVisit& visit) {
  if (value.is_null()) return true;
  if (value.is_string()) return visit(value.get_ref<const std::string&>(), &value);
  if (!value.is_structured()) return visit(FormatJson(value), &value);
  for (const auto& [key, item] : value.items()) {
    if (value.is_object() && !visit(key, nullptr)) return false;
    if (!ForEachText(item, visit)) return false;
  }
  return true;
}

}  // namespace qlora
