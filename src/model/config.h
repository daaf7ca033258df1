// A model's config.json, or the keys of its GGUF file, as data: one parametrised decoder, of which
// a family is a row of values.
#ifndef QLORA_MODEL_CONFIG_H_
#define QLORA_MODEL_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "io/json_fwd.h"

namespace qlora {

enum class RopeType : std::uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongrope };

// One table of rotary frequencies (Hugging Face modeling_rope_utils names).
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double rope_theta = 10000;
  std::int64_t rotary_dim = 0;  // K_rot <= head_dim, even
  double factor = 1;
  double low_freq_factor = 1;   // llama3
  double high_freq_factor = 4;  // llama3
  double beta_fast = 32;        // yarn
  double beta_slow = 1;         // yarn
  double attention_factor = 1;  // multiplies cos and sin (yarn, longrope; in GGUF all types)
  bool truncate = true;         // yarn: correction range rounded outwards to whole dims
  std::int64_t original_max_position_embeddings = 0;
  std::vector<double>
      short_factor;  // (rotary_dim / 2) longrope, sequences up to the original length
  std::vector<double> long_factor;  // (rotary_dim / 2) longrope, longer sequences
  // (rotary_dim / 2) beside any type: divides the frequencies once more (GGUF's rope_freqs).
  // Empty: 1.
  std::vector<double> divisors;

  bool operator==(const RopeConfig&) const = default;
};

struct LayerConfig {
  std::int64_t window = 0;  // keys that a query sees, itself included; 0: all
  int rope = 0;             // index into DecoderConfig::ropes; -1: no rotary embedding
};

inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxExperts = 512;

// Mixture of experts in place of the MLP; num_experts == 0: a dense MLP.
struct MoeConfig {
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = false;  // the weights of a token's experts are divided by their sum
};

struct DecoderConfig {
  std::string model_type;    // "llama", "qwen2", ...
  std::string architecture;  // "LlamaForCausalLM", ...

  std::int64_t vocab_size = 0;           // V: rows of the embedding
  std::int64_t hidden_size = 0;          // D
  std::int64_t intermediate_size = 0;    // F: of one expert in a mixture of experts
  std::int64_t num_hidden_layers = 0;    // L
  std::int64_t num_attention_heads = 0;  // H
  std::int64_t num_key_value_heads = 0;  // G
  std::int64_t head_dim = 0;             // K
  std::int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  bool tie_word_embeddings = false;
  // config.json says that the head is tied, and the checkpoint holds another: it is not tied.
  bool has_own_head = false;

  Activation hidden_act = Activation::kSilu;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;        // RMSNorm of every query and key head before RoPE
  bool one_plus_norm = false;  // norm weights are stored as w - 1 (Gemma)
  bool post_norms = false;  // RMSNorm of each block's output before it joins the residual (Gemma)
  bool fused_linears = false;  // qkv_proj and gate_up_proj instead of separate linears (Phi-3)
  float embed_scale = 1;
  float attention_scale = 0;    // multiplies q . k
  float attention_softcap = 0;  // 0: none
  float final_softcap = 0;      // 0: none

  // What paths of modules have in the place of "model." in the class that AutoModelForCausalLM of
  // transformers gives for this config.json; adapters are written with it.
  std::string module_prefix = "model.";

  std::vector<RopeConfig> ropes;
  std::vector<LayerConfig> layers;  // L
  MoeConfig moe;

  // Remarks for the user: settings of the file that are not followed.
  std::vector<std::string> notes;

  std::int64_t q_features() const { return num_attention_heads * head_dim; }   // H*K
  std::int64_t kv_features() const { return num_key_value_heads * head_dim; }  // G*K
  std::int64_t qkv_features() const { return q_features() + 2 * kv_features(); }
};

// Reads a GGUF file (gguf_config.h), or <model_dir>/config.json (Hugging Face transformers 4 and 5
// spellings; the text part of a multimodal Gemma 3). Errors: InvalidInput naming the file and the
// key: unknown architecture, rope type or activation, a quantization_config other than bitsandbytes
// 4-bit, settings that contradict each other, missing or absurd sizes. Where config.json ties the
// head to the embedding, the weights of the folder are looked at (HoldsOwnHead in
// model/checkpoint.h).
DecoderConfig LoadDecoderConfig(const std::filesystem::path& model_dir);
// The same from the content of a config.json. where: the file, for messages.
DecoderConfig ParseDecoderConfig(const Json& root, const std::string& where);

// Errors: InvalidInput for sizes, caps and scales that no decoder has, whatever file they come
// from.
void CheckSizes(const DecoderConfig& config, const std::string& where);

}  // namespace qlora

#endif  // QLORA_MODEL_CONFIG_H_
