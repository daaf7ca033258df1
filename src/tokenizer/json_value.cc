#include "tokenizer/json_value.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

using nlohmann::json;

// A value in an error message. Lists and objects may be deep, so only their kind is named; other
// values become ASCII, which may be cut anywhere.
std::string Shown(const json* value) {
  if (value == nullptr) return "no such key";
  if (value->is_structured()) return fmt::format("an {}", value->type_name());
  // Never throws: with ensure_ascii strings are escaped, and the parser has checked that they are
  // UTF-8.
  std::string text = value->dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace

// Places read like paths: the root is "file: ", its members "file: model", theirs "file:
// model.vocab".
bool JsonValue::IsNull() const { return value_ == nullptr || value_->is_null(); }

bool JsonValue::IsArray() const { return value_ != nullptr && value_->is_array(); }

bool JsonValue::IsObject() const { return value_ != nullptr && value_->is_object(); }

bool JsonValue::IsNegative() const {
  return value_ != nullptr && value_->is_number() && *value_ < 0;
}

JsonValue JsonValue::operator[](std::string_view key) const {
  if (!IsObject()) Fail("an object");
  const auto member = value_->find(key);
  // A missing key is not an error here but a null value that remembers its place: whoever needs a
  // string or a number names the missing key in the error.
  const bool root = where_.ends_with(": ");
  return {member == value_->end() ? nullptr : &*member,
          fmt::format("{}{}{}", where_, root ? "" : ".", key)};
}

bool JsonValue::Has(std::string_view key) const { return IsObject() && value_->contains(key); }

std::vector<std::string> JsonValue::Keys() const {
  if (!IsObject()) Fail("an object");
  std::vector<std::string> keys;
  for (const auto& [key, value] : value_->items()) keys.push_back(key);
  return keys;
}

std::vector<JsonValue> JsonValue::Array() const {
  if (!IsArray()) Fail("an array");
  std::vector<JsonValue> items;
  for (const json& item : *value_) {
    items.emplace_back(&item, fmt::format("{}[{}]", where_, items.size()));
  }
  return items;
}

std::string JsonValue::String() const {
  if (value_ == nullptr || !value_->is_string()) Fail("a string");
  return value_->get<std::string>();
}

bool JsonValue::Bool() const {
  if (value_ == nullptr || !value_->is_boolean()) Fail("true or false");
  return value_->get<bool>();
}

double JsonValue::Number() const {
  if (value_ == nullptr || !value_->is_number()) Fail("a number");
  return value_->get<double>();
}

// 2^31 - 1 is left out so that the number of ids fits, too.
std::int32_t JsonValue::Id() const {
  if (value_ == nullptr || !value_->is_number_unsigned() ||
      value_->get<std::uint64_t>() >= std::numeric_limits<std::int32_t>::max()) {
    Fail("a token id");
  }
  return value_->get<std::int32_t>();
}

char32_t JsonValue::Character() const {
  const std::string text = String();
  if (text.empty() || Utf8Length(text[0]) != std::ssize(text)) Fail("one character");
  const char* p = text.data();
  return NextCharacter(p);
}

std::string JsonValue::Dump() const { return value_ == nullptr ? "null" : value_->dump(); }

void JsonValue::Fail(std::string_view expected) const {
  ThrowInvalidInput("{}: expected {}, found {}", where_, expected, Shown(value_));
}

}  // namespace qlora
