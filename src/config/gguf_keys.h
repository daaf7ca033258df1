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

// Keys of an architecture that several files read, write or check, behind its name and a dot. A key
// of one file stands there.
namespace gguf_key {
inline constexpr const char* kBlocks = "block_count";
inline constexpr const char* kVocabulary = "vocab_size";
inline constexpr const char* kWidth = "feed_forward_length";
inline constexpr const char* kHeads = "attention.head_count";
inline constexpr const char* kKeyHeads = "attention.head_count_kv";
inline constexpr const char* kKeyLength = "attention.key_length";
inline constexpr const char* kValueLength = "attention.value_length";
inline constexpr const char* kLocalKeyLength = "attention.key_length_swa";
inline constexpr const char* kLocalValueLength = "attention.value_length_swa";
inline constexpr const char* kCausal = "attention.causal";
inline constexpr const char* kScale = "attention.scale";
inline constexpr const char* kEpsilon = "attention.layer_norm_rms_epsilon";
inline constexpr const char* kSharedKvLayers = "attention.shared_kv_layers";
inline constexpr const char* kWindow = "attention.sliding_window";
inline constexpr const char* kPattern = "attention.sliding_window_pattern";
inline constexpr const char* kRotating = "attention.rope_pattern";
inline constexpr const char* kExperts = "expert_count";
inline constexpr const char* kUsedExperts = "expert_used_count";
inline constexpr const char* kExpertWidth = "expert_feed_forward_length";
inline constexpr const char* kExpertGroups = "expert_group_count";
inline constexpr const char* kDims = "rope.dimension_count";
inline constexpr const char* kLocalDims = "rope.dimension_count_swa";
inline constexpr const char* kSections = "rope.dimension_sections";
inline constexpr const char* kBase = "rope.freq_base";
inline constexpr const char* kLocalBase = "rope.freq_base_swa";
inline constexpr const char* kLinear = "rope.scale_linear";
inline constexpr const char* kFactor = "rope.scaling.factor";
inline constexpr const char* kOriginal = "rope.scaling.original_context_length";
inline constexpr const char* kAttention = "rope.scaling.attn_factor";
inline constexpr const char* kBetaFast = "rope.scaling.yarn_beta_fast";
inline constexpr const char* kBetaSlow = "rope.scaling.yarn_beta_slow";
inline constexpr const char* kFinetuned = "rope.scaling.finetuned";
inline constexpr const char* kInnerSize = "ssm.inner_size";
}  // namespace gguf_key

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

  std::int64_t blocks() const { return Int(gguf_key::kBlocks); }
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
