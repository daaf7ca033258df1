// tokenizer.json and its sibling files, read with errors that name file and key.
#ifndef QLORA_TOKENIZER_TOKENIZER_JSON_H_
#define QLORA_TOKENIZER_TOKENIZER_JSON_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qlora {

// A value and the place where it stands ("dir/tokenizer.json: model.vocab"). Borrows the document.
// The accessors throw InvalidInput when the value is missing or of another type.
class JsonValue {
 public:
  JsonValue(const nlohmann::json* value, std::string where)
      : value_(value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool IsNull() const { return value_ == nullptr || value_->is_null(); }  // or absent
  bool IsString() const { return value_ != nullptr && value_->is_string(); }
  bool IsArray() const { return value_ != nullptr && value_->is_array(); }
  bool IsObject() const { return value_ != nullptr && value_->is_object(); }
  bool IsNegative() const { return value_ != nullptr && value_->is_number() && *value_ < 0; }

  // The member of an object; absent members are null values.
  JsonValue operator[](std::string_view key) const;
  bool Has(std::string_view key) const;
  std::vector<JsonValue> Array() const;
  std::vector<std::pair<std::string, JsonValue>> Members() const;
  std::string String() const;
  bool Bool() const;
  bool Bool(bool if_null) const { return IsNull() ? if_null : Bool(); }
  double Number() const;
  std::int32_t Id() const;  // 0 ... 2^31 - 2
  // The single character of a string.
  char32_t Character() const;
  std::string Dump() const;

  [[noreturn]] void Fail(std::string_view expected) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

// Errors: InvalidInput when the file is missing, unreadable or no JSON.
nlohmann::json ParseJsonFile(const std::filesystem::path& path);

// tokenizer.json with its large parts taken out while it is parsed.
struct TokenizerJson {
  std::string file;
  nlohmann::json rest;  // model.vocab and model.merges are empty
  bool has_vocab = false;
  bool has_merges = false;
  std::vector<std::pair<std::string, std::int32_t>> vocab;   // object form, in file order
  std::vector<std::pair<std::string, double>> scored_vocab;  // array form (Unigram)
  std::vector<std::pair<std::string, std::string>> merges;   // "a b" and ["a", "b"] alike

  JsonValue Root() const { return {&rest, file + ": "}; }
};
TokenizerJson ParseTokenizerJson(const std::string& text, const std::string& file);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKENIZER_JSON_H_
