// The families of models that are supported.
#ifndef QLORA_MODEL_FAMILIES_H_
#define QLORA_MODEL_FAMILIES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace qlora {

enum class WindowRule : std::uint8_t {
  kNone,
  kAll,        // every layer when sliding_window is not null
  kUpper,      // layers >= max_window_layers when use_sliding_window
  kAllIfUsed,  // every layer when use_sliding_window
  kNoRope,     // layers without RoPE when use_sliding_window
  kEven,       // layers 0, 2, 4, ...
  kFiveOfSix,  // all but every sixth (or sliding_window_pattern-th) layer
};
enum class BiasRule : std::uint8_t { kNone, kKey, kQkvOnly };  // kKey: as attention_bias says

// One row for each family: the class defaults of transformers for keys that config.json omits, and
// the properties that no key states. Source: the configuration and modeling files of transformers.
struct Family {
  std::string_view model_type;
  std::string_view architecture;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 0;  // 0: = num_attention_heads
  std::int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  double rms_norm_eps = 1e-6;
  double rope_theta = 1e4;
  bool tie_word_embeddings = false;
  std::int64_t sliding_window = 0;  // when the key is missing; 0: null
  WindowRule window = WindowRule::kNone;
  BiasRule bias = BiasRule::kNone;
  bool mlp_bias_key = false;
  bool qk_norm = false;
  bool gemma = false;  // 1+w norms, gelu, scaled embedding, query_pre_attn_scalar, post norms
  bool fused_linears = false;
  bool moe = false;
  float attention_softcap = 0;
  float final_softcap = 0;
};

// where: for the message. Errors: InvalidInput for another model type.
const Family& FamilyOf(const std::string& model_type, const std::string& where);

// The known model types, for messages: "llama, mistral, ...".
std::string SupportedModelTypes();

}  // namespace qlora

#endif  // QLORA_MODEL_FAMILIES_H_
