// The keys of a GGUF file that describe its tokenizer, by type.
#ifndef QLORA_TOKENIZER_TOKENIZER_KEYS_H_
#define QLORA_TOKENIZER_TOKENIZER_KEYS_H_

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "gguf/gguf.h"

namespace qlora {

// What to do when a file's tokenizer cannot be used.
inline constexpr std::string_view kOtherTokenizer =
    "give the Hugging Face checkpoint that the file was made from";

// The keys of a file below "tokenizer.", which is left out of their names here. Errors:
// InvalidInput with file and key.
class TokenizerKeys {
 public:
  explicit TokenizerKeys(const std::filesystem::path& path)
      : where_(path.string()), metadata_(ReadGgufMetadata(path)) {}

  const std::string& where() const { return where_; }
  const GgufMetadata& metadata() const { return metadata_; }

  // nullptr when there is no such key.
  template <typename T>
  const T* Get(std::string_view key) const {
    const GgufValue* value = metadata_.Find(fmt::format("tokenizer.{}", key));
    if (value == nullptr) return nullptr;
    const T* found;
    GgufValue wanted;
    if constexpr (std::is_constructible_v<GgufArray, std::in_place_type_t<T>>) {
      const auto* array = std::get_if<GgufArray>(value);
      found = array == nullptr ? nullptr : std::get_if<T>(array);
      wanted = GgufArray(std::in_place_type<T>);
    } else {
      found = std::get_if<T>(value);
      wanted = GgufValue(std::in_place_type<T>);
    }
    if (found == nullptr) {
      Fail(key, fmt::format("expected {}, found {}", TypeNameOf(wanted), TypeNameOf(*value)));
    }
    return found;
  }
  template <typename T>
  const T& Require(std::string_view key) const {
    const T* value = Get<T>(key);
    if (value == nullptr) Fail(key, fmt::format("is missing; {}", kOtherTokenizer));
    return *value;
  }
  // True when the value is an array of T.
  template <typename T>
  bool HoldsArray(std::string_view key) const {
    const GgufValue* value = metadata_.Find(fmt::format("tokenizer.{}", key));
    const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
    return array != nullptr && std::holds_alternative<T>(*array);
  }
  [[noreturn]] void Fail(std::string_view key, std::string_view what) const {
    ThrowInvalidInput("{}: key 'tokenizer.{}': {}", where_, key, what);
  }

 private:
  std::string where_;
  GgufMetadata metadata_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKENIZER_KEYS_H_
