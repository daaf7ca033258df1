// The families of models that are supported.
#ifndef QLORA_CONFIG_FAMILIES_H_
#define QLORA_CONFIG_FAMILIES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "config/config.h"

namespace qlora {

enum class WindowRule : std::uint8_t {
  kNone,
  kAll,        // every layer when sliding_window is not null
  kUpper,      // layers >= max_window_layers when use_sliding_window
  kAllIfUsed,  // every layer when use_sliding_window
  kNoRope,     // layers without RoPE when use_sliding_window
  kPeriod,     // all but the last of each `window_period` layers
};
// The layers whose mixer is not attention.
enum class MixerRule : std::uint8_t {
  kAttention,
  kDeltaRule,  // linear_attention of layer_types, or all but each full_attention_interval-th
  kShortConv,  // conv of layer_types, or all that full_attn_idxs does not name
};
enum class BiasRule : std::uint8_t {
  kNone,
  kKey,       // q, k, v and o as attention_bias says
  kQkvKey,    // q, k and v as attention_bias says
  kQkvOnly,   // q, k and v always
  kTwoKeys,   // q, k and v as attention_bias says, o as attention_out_bias does
  kAllByKey,  // all linears as use_bias says
};

// A mixture of experts: what transformers has for keys that config.json omits, and what no key
// states.
struct ExpertDefaults {
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t intermediate_size = 0;         // moe_intermediate_size
  std::int64_t shared_intermediate_size = 0;  // of the expert of all tokens; 0: there is none
  bool norm_topk_prob = false;
  bool always_normalized = false;  // whatever norm_topk_prob says
  // The keys are num_local_experts and intermediate_size, not num_experts and
  // moe_intermediate_size.
  bool local_names = false;
  bool has_dense_layers = false;  // where mlp_only_layers or decoder_sparse_step says so
  RouterScore score = RouterScore::kSoftmax;
};

// What a part of positions is in files of models that see (rope.dimension_sections).
enum class PositionSections : std::uint8_t { kNone, kRead, kRefused };

// What llama.cpp computes of a family in its own way; config/gguf_config_json.h has what all share.
struct GgufFamily {
  bool is_llama = false;              // is the architecture llama, whose graph reads rope_freqs
  bool is_tied = false;               // has no head of its own, whatever tensors there are
  bool rotates_partly = false;        // rope.dimension_count may be less than a head
  bool always_reads_factors = false;  // rope_factors count whatever rope.scaling.type says
  bool has_local_base = false;        // rope.freq_base_swa is of the scaled table
  PositionSections sections = PositionSections::kNone;
  std::int64_t layers_of_27b = 0;  // whose scores are divided by sqrt(D / H)
  std::int64_t window = 0;         // without attention.sliding_window
};

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
  std::int64_t max_window_layers = 28;  // of kUpper, when the key is missing
  std::int64_t window_period = 0;       // of kPeriod, when sliding_window_pattern is missing
  BiasRule bias = BiasRule::kNone;
  bool attention_bias = false;  // when the key is missing
  bool mlp_bias_key = false;
  QkNorm qk_norm = QkNorm::kNone;
  MixerRule mixers = MixerRule::kAttention;
  OutputGate output_gate = OutputGate::kNone;
  bool one_plus_norm = false;
  bool gemma = false;  // gelu, scaled embedding
  // Norms of values, a scalar of each layer, layers that share keys and values
  // (config_gemma4.h).
  bool gemma4 = false;
  std::int64_t per_layer_size = 0;  // when hidden_size_per_layer_input is missing
  bool query_scalar = false;        // scores are divided by sqrt(query_pre_attn_scalar)
  bool input_norms = true;
  bool post_norms = false;
  bool fused_qkv = false;
  bool fused_gate_up = false;
  bool fused_delta = false;
  bool moe = false;
  ExpertDefaults experts = {};  // with moe
  // Attention sinks, and experts with biases and a clamped activation, in two parameters a layer.
  bool gpt_oss = false;
  bool multipliers = false;  // embedding_, attention_, residual_multiplier and logits_scaling
  // Layers with a window have a table of rotary frequencies of their own.
  bool local_rope = false;
  bool interleaved_rope = false;
  bool query_scale = false;           // queries grow with the position (llama_4_scaling_beta)
  bool scales_by_lists = false;       // rope_scaling is of type longrope, or null
  std::int64_t no_rope_interval = 0;  // each such layer does not rotate, without no_rope_layers
  double partial_rotary_factor = 1;   // when the key is missing
  float attention_softcap = 0;
  float final_softcap = 0;
  ModuleNames names = {};
  // The family of text alone that computes the same of text; empty where it is one.
  std::string_view of_text = {};
  GgufFamily gguf = {};
};

// where: for the message. Errors: InvalidInput for another model type.
const Family& FamilyOf(const std::string& model_type, const std::string& where);

// A model that also sees or hears. Its decoder is in "text_config", or among its own keys.
struct Wrapper {
  std::string_view model_type;
  std::string_view text;  // the model type of its decoder
  // text_config may name another model type, which then counts: one wrapper has several decoders.
  bool names_text = false;
  bool tie_word_embeddings = false;  // when the key is missing
};

// nullptr for other model types.
const Wrapper* FindWrapper(std::string_view model_type);

// Copies the properties of a family that no key of a file states.
void ApplyFamily(const Family& family, DecoderConfig& config);

// The known model types, for messages: "llama, mistral, ...".
std::string SupportedModelTypes();

}  // namespace qlora

#endif  // QLORA_CONFIG_FAMILIES_H_
