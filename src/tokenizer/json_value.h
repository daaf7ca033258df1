// A JSON value that knows where it is stored, for errors that name file and key.
#ifndef QLORA_TOKENIZER_JSON_VALUE_H_
#define QLORA_TOKENIZER_JSON_VALUE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qlora {

// A value and its place ("dir/tokenizer.json: model.vocab"). Borrows the document.
// The accessors throw InvalidInput when the value is missing or of another type.
class JsonValue {
 public:
  JsonValue(const nlohmann::json* value, std::string where)
      : value_(value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool IsNull() const;  // or absent
  bool IsArray() const;
  bool IsObject() const;
  bool IsNegative() const;

  // The member of an object; absent members are null values.
  JsonValue operator[](std::string_view key) const;
  bool Has(std::string_view key) const;
  std::vector<std::string> Keys() const;  // of an object
  std::vector<JsonValue> Array() const;
  std::string String() const;
  bool Bool() const;
  bool Bool(bool if_null) const { return IsNull() ? if_null : Bool(); }
  double Number() const;
  std::int32_t Id() const;  // 0 ... 2^31 - 2
  // The single character of a string.
  char32_t Character() const;
  // JSON text. Recursive, so only for documents whose depth is limited.
  std::string Dump() const;

  // Throws "WHERE: expected EXPECTED, found VALUE".
  [[noreturn]] void Fail(std::string_view expected) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_JSON_VALUE_H_
