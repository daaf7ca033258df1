// How the keys of a GGUF file are read, with the types that llama.cpp demands.
#ifndef QLORA_CONFIG_GGUF_KEYS_H_
#define QLORA_CONFIG_GGUF_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/gguf.h"

namespace qlora {

// The keys of an architecture: "block_count" is "llama.block_count". Errors: InvalidInput naming
// the file and the key, for another type, and where a key is missing that has no default.
class GgufKeys {
 public:
  GgufKeys(const GgufReader& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  const GgufReader& file() const { return file_; }
  std::string where() const { return file_.where(); }
  bool Has(std::string_view key) const { return file_.values().Find(Name(key)) != nullptr; }

  // nullptr also for a value of another type.
  template <typename T>
  const T* Unchecked(std::string_view key) const {
    const GgufValue* value = file_.values().Find(Name(key));
    return value == nullptr ? nullptr : std::get_if<T>(value);
  }

  std::int64_t Int(std::string_view key) const { return file_.Require<std::uint32_t>(Name(key)); }
  std::int64_t Int(std::string_view key, std::int64_t otherwise) const {
    const auto* value = file_.Get<std::uint32_t>(Name(key));
    return value == nullptr ? otherwise : *value;
  }
  double Double(std::string_view key) const { return file_.Require<float>(Name(key)); }
  double Double(std::string_view key, double otherwise) const {
    const auto* value = file_.Get<float>(Name(key));
    return value == nullptr ? otherwise : double{*value};
  }
  bool Bool(std::string_view key, bool otherwise) const {
    const auto* value = file_.Get<bool>(Name(key));
    return value == nullptr ? otherwise : *value;
  }
  std::string String(std::string_view key, const std::string& otherwise) const {
    const auto* value = file_.Get<std::string>(Name(key));
    return value == nullptr ? otherwise : *value;
  }

  // A positive number.
  double Positive(std::string_view key, std::optional<double> otherwise = {}) const;

  std::int64_t blocks() const { return Int("block_count"); }
  // A number for each block, of a list or of one number for all.
  std::vector<std::int64_t> OfBlocks(std::string_view key) const;
  // The number of OfBlocks, which must be the same for all.
  std::int64_t IntOfBlocks(std::string_view key, std::optional<std::int64_t> otherwise = {}) const;
  // The list of a key; empty where the key is no list of whole numbers or bools. Errors: another
  // length than `count`.
  std::vector<std::int64_t> List(std::string_view key, std::int64_t count) const;

 private:
  std::string Name(std::string_view key) const { return prefix_ + std::string(key); }

  const GgufReader& file_;
  std::string prefix_;
};

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_KEYS_H_
