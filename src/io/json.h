// JSON with errors that name the file, the line and the key. In every function, `where` starts the
// message: a path, or "data.jsonl:17" for one line of a file.
#ifndef QLORA_IO_JSON_H_
#define QLORA_IO_JSON_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "io/json_fwd.h"

namespace qlora {

// Levels of lists and objects in any JSON text that is read, at most: values are copied, compared
// and printed by recursion, so that a deeper text could exhaust the stack.
inline constexpr int kMaxJsonDepth = 64;

// Keys of one object of an OrderedJson, at most: a key is searched for among all keys before it, so
// that the time to parse an object grows with the square of their number.
inline constexpr std::int64_t kMaxOrderedKeys = 10'000;

// Values in one text, at most. Each takes up to a hundred bytes, however short its text is. The
// largest tokenizers have 2 million; a record of data has a value for each message and field.
inline constexpr std::int64_t kMaxJsonValues = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxOrderedValues = std::int64_t{1} << 20;

// A whole number beyond 64 bits keeps its digits: in an OrderedJson it is a binary value, which
// JSON has none of.
OrderedJson WideInteger(std::string_view digits);
// Returns the digits; "" for other values.
std::string DigitsOf(const OrderedJson& value);

// The fault of a text, and the byte where it is.
struct JsonDefect {
  std::size_t offset = 0;
  std::string reason;
};

// Parses `text` into `value`. Returns the defect, with `value` unspecified, of a text that is not
// JSON, exceeds a limit above, or holds a number that no double can hold.
std::optional<JsonDefect> TryParseJson(std::string_view text, OrderedJson& value,
                                       std::int64_t max_values = kMaxOrderedValues);
std::optional<JsonDefect> TryParseJson(std::string_view text, Json& value);

// Returns a key that an object of `text` has twice, of which only the last is in `value`, parsed
// from `text`; nothing when there is none.
std::optional<std::string> FindDuplicateKey(std::string_view text, const OrderedJson& value);

enum class DuplicateKeys { kLastWins, kRefuse };  // kLastWins: as Python's json

// All functions from here on throw InvalidInput.
OrderedJson ParseOrderedJson(std::string_view text, std::string_view where,
                             DuplicateKeys duplicates = DuplicateKeys::kLastWins);
Json ParseJson(std::string_view text, std::string_view where,
               DuplicateKeys duplicates = DuplicateKeys::kLastWins);
Json ReadJsonFile(const std::filesystem::path& path);

// Returns the value of `key`, or nullptr when it is absent or null. Throws when `object` is not an
// object.
const Json* FindJson(const Json& object, std::string_view key, std::string_view where);

// Returns a value as T: bool, std::int64_t, double (any number), std::string, or a vector of these.
// Nothing is converted: true is not 1 and 1.5 is not an integer. `key` is for the message.
template <typename T>
T JsonAs(const Json& value, std::string_view key, std::string_view where);

// Returns the value of a key that must be there and may not be null.
template <typename T>
T JsonGet(const Json& object, std::string_view key, std::string_view where);

// Returns the value of a key, or `fallback` when it is absent or null.
template <typename T>
T JsonGetOr(const Json& object, std::string_view key, T fallback, std::string_view where) {
  const Json* value = FindJson(object, key, where);
  return value == nullptr ? std::move(fallback) : JsonAs<T>(*value, key, where);
}

// Returns the text of a value, the one way in which values are written: on one line, or indented.
// Text that is not UTF-8, which values that were not parsed may hold, is replaced by U+FFFD.
std::string FormatJson(const Json& value, int indent = -1);
std::string FormatJson(const OrderedJson& value, int indent = -1);
// Returns a text as it is, and any other value as JSON.
std::string TextOrJson(const OrderedJson& value);

// Calls visit(text, leaf) for the texts of a value in their order, until it returns false: for each
// key of an object, where leaf is null, and with TextOrJson for each value but null that is neither
// list nor object. True when visit always was.
using TextVisit = std::function<bool(const std::string& text, const OrderedJson* leaf)>;
bool ForEachText(const OrderedJson& value, const TextVisit& visit);

}  // namespace qlora

#endif  // QLORA_IO_JSON_H_
