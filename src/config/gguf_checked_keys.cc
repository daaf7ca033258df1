#include "config/gguf_checked_keys.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace qlora {
namespace {

// The keys that llama.cpp reads for every architecture, by their types.
constexpr const char* kNumbers[] = {
    gguf_key::kVocabulary,      "embedding_length_out",  "pooling_type",
    gguf_key::kExperts,         gguf_key::kExpertGroups, "expert_group_used_count",
    gguf_key::kOriginal,        gguf_key::kDims,         gguf_key::kLocalDims,
    gguf_key::kKeyLength,       gguf_key::kValueLength,  gguf_key::kLocalKeyLength,
    gguf_key::kLocalValueLength};
constexpr const char* kReals[] = {gguf_key::kBase, gguf_key::kFactor, gguf_key::kLinear,
                                  gguf_key::kAttention, "rope.scaling.alpha"};
constexpr const char* kBools[] = {gguf_key::kCausal, gguf_key::kFinetuned};
// Of each layer, or one for all.
constexpr const char* kLists[] = {gguf_key::kWidth, gguf_key::kHeads, gguf_key::kKeyHeads,
                                  gguf_key::kUsedExperts};

class Checker {
 public:
  Checker(const GgufKeys& keys, const Family& family, const DecoderConfig& config)
      : keys_(keys), family_(family), config_(config) {}

  void Run() const {
    CheckTypes();
    if (!keys_.Bool(gguf_key::kCausal, true)) {
      Refuse(gguf_key::kCausal, "false: tokens would see those behind them");
    }
    if (keys_.Int(gguf_key::kExpertGroups, 0) > 1) {
      Refuse(gguf_key::kExpertGroups, "more than 1: experts would be chosen by groups");
    }
    CheckExpertCounts();
    CheckWindowSizes();
    for (const char* key : {"attention.recurrent_layers", "deepstack_mapping"}) {
      if (keys_.Has(key)) Refuse(key, "set: it changes what layers compute");
    }
    if (HasRopePattern() && !family_.layer_thetas) {
      Refuse(gguf_key::kRotating, "0 for some layers");
    }
    const bool has_window = keys_.Int(gguf_key::kWindow, 0) > 0;
    if (family_.lfm2 && !family_.moe && has_window) {
      Refuse(gguf_key::kWindow, "set: tokens would not see all before them");
    }
  }

 private:
  [[noreturn]] void Refuse(std::string_view key, std::string_view what) const {
    ThrowInvalidInput("{}: key '{}.{}' is {}, which is not supported in a {}", keys_.where(),
                      family_.gguf.architecture, key, what, family_.model_type);
  }

  // A key of another type is an error, as for those that are used.
  void CheckTypes() const {
    for (const char* key : kNumbers) keys_.Int(key, 0);
    for (const char* key : kReals) keys_.Double(key, 0);
    for (const char* key : kBools) keys_.Bool(key, true);
    for (const char* key : kLists) {
      if (keys_.Unchecked<GgufArray>(key) == nullptr) keys_.Int(key, 0);
    }
    if (const GgufValue* name = keys_.file().values().Find(kGgufName)) {
      if (!std::holds_alternative<std::string>(*name)) {
        ThrowInvalidInput("{}: key 'general.name': expected a string, found {}", keys_.where(),
                          TypeNameOf(*name));
      }
    }
  }

  void CheckExpertCounts() const {
    if (config_.experts().num_experts > 0) return;
    // llama.cpp takes one expert of a Hunyuan for none.
    const std::int64_t most = family_.model_type == "hunyuan_v1_dense" ? 1 : 0;
    for (const char* key : {gguf_key::kExperts, gguf_key::kUsedExperts}) {
      if (keys_.Unchecked<GgufArray>(key) == nullptr && keys_.Int(key, 0) <= most) continue;
      Refuse(key, "set: its layers have no experts");
    }
  }

  // Layers with a window may have other heads, which are read where a family has them.
  void CheckWindowSizes() const {
    if (family_.gemma4 || family_.gguf.windows == GgufWindows::kIgnored) return;
    const std::int64_t head = config_.head_dim;
    const std::int64_t rotary = config_.ropes[0].rotary_dim;
    for (const auto& [key, size] : {std::pair{gguf_key::kLocalKeyLength, head},
                                    {gguf_key::kLocalValueLength, head},
                                    {gguf_key::kLocalDims, rotary}}) {
      if (family_.ropes_by_type && std::string_view(key).starts_with("rope.")) continue;
      if (keys_.Int(key, size) != size) Refuse(key, fmt::format("not {}", size));
    }
  }

  bool HasRopePattern() const {
    const std::vector<std::int64_t> pattern = keys_.List(gguf_key::kRotating, keys_.blocks());
    return std::ranges::any_of(pattern, [](std::int64_t turns) { return turns == 0; });
  }

  const GgufKeys& keys_;
  const Family& family_;
  const DecoderConfig& config_;
};

}  // namespace

void CheckGgufKeys(const GgufKeys& keys, const Family& family, const DecoderConfig& config) {
  Checker(keys, family, config).Run();
}

}  // namespace qlora
