// A model's config.json, or the keys of its GGUF file, as data: one parametrised decoder, of which
// a family is a row of values.
#ifndef QLORA_CONFIG_CONFIG_H_
#define QLORA_CONFIG_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/expert_ops.h"
#include "backend/recurrent_ops.h"
#include "base/index_range.h"
#include "io/fp8.h"
#include "io/json_fwd.h"

namespace qlora {

enum class RopeType : std::uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongrope };

// One table of rotary frequencies (Hugging Face modeling_rope_utils names).
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double rope_theta = 10000;
  std::int64_t rotary_dim = 0;  // K_rot <= head_dim, even; 0: its layers do not rotate
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
  // Of models that see: pairs that turn with each part of a position; for text all parts are equal.
  std::vector<std::int64_t> mrope_section;
  // Dims 2 i and 2 i + 1 of a head form a pair, not i and i + rotary_dim / 2.
  bool interleaved = false;
  // Not 0: cos and sin of position p are multiplied by 1 + query_scale_beta ln(1 + floor(p /
  // original_max_position_embeddings)) (Ministral 3's llama_4_scaling_beta; a table of queries).
  double query_scale_beta = 0;
  // (rotary_dim / 2) beside any type: divides the frequencies once more (GGUF's rope_freqs).
  // Empty: 1.
  std::vector<double> divisors;

  bool operator==(const RopeConfig&) const = default;
};

// What mixes the tokens of a layer.
enum class Mixer : std::uint8_t {
  kAttention,
  kDeltaRule,  // the gated delta rule behind a short convolution (Qwen3.5)
  kShortConv,  // a short convolution between two gates (LFM2)
};

struct LayerConfig {
  std::int64_t window = 0;  // keys that a query sees, itself included; 0: all
  // Indices into DecoderConfig::ropes, of keys and of queries; -1: no rotary embedding, and for
  // queries the table of keys.
  int rope = 0;
  int query_rope = -1;
  // Sizes of this layer where they differ from those of DecoderConfig; 0: they do not.
  // DecoderConfig::layer fills them in.
  std::int64_t num_attention_heads = 0;  // H
  std::int64_t num_key_value_heads = 0;  // G
  std::int64_t head_dim = 0;             // K
  std::int64_t intermediate_size = 0;    // F
  Mixer mixer = Mixer::kAttention;
  bool k_is_v = false;  // values are the output of k_proj, and there is no v_proj (Gemma 4)
  // Attends to the keys and values of this earlier layer, and has no k_proj and v_proj of its own
  // (Gemma 4); -1: to its own.
  std::int64_t kv_layer = -1;
  bool is_dense = false;  // an MLP, although other layers have experts (LFM2)

  bool has_own_kv() const { return kv_layer < 0; }
  std::int64_t q_features() const { return num_attention_heads * head_dim; }   // H*K
  std::int64_t kv_features() const { return num_key_value_heads * head_dim; }  // G*K
  std::int64_t qkv_features() const { return q_features() + 2 * kv_features(); }
  int rope_of_queries() const { return query_rope < 0 ? rope : query_rope; }
  bool operator==(const LayerConfig&) const = default;
};

// Where the norms of queries and keys stand.
enum class QkNorm : std::uint8_t {
  kNone,
  kHeads,         // of each head, before RoPE (Qwen 3, Gemma 3)
  kRotatedHeads,  // of each head, after RoPE (Hunyuan)
  kProjection,    // of all heads together, before RoPE (Olmo)
};

// What the output of attention is multiplied by before the last linear: sigmoid(gate).
enum class OutputGate : std::uint8_t {
  kNone,
  kHeads,  // one gate for each head: a linear (H, D) behind q, k and v
  kFull,   // as wide as the output: q_proj has K rows of query, then K of gate for each head
};

// The names of modules, which families spell differently. Unused names have no meaning.
struct ModuleNames {
  std::string_view embedding = "embed_tokens";  // of the model
  std::string_view input_norm = "input_layernorm";
  std::string_view post_attn_norm = "post_attention_layernorm";  // with post_norms
  std::string_view mlp_norm = "post_attention_layernorm";
  std::string_view post_mlp_norm = "post_feedforward_layernorm";  // with post_norms
  std::string_view final_norm = "norm";                           // of the model
  std::string_view qkv = "self_attn.qkv_proj";                    // with fused_qkv
  std::string_view q_norm = "self_attn.q_norm";
  std::string_view k_norm = "self_attn.k_norm";
  std::string_view attn_gate = "self_attn.gate_proj";  // with OutputGate::kHeads
  std::string_view o = "self_attn.o_proj";
  std::string_view mlp = "mlp";  // also the module that holds router and experts
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view gate_up = "gate_up_proj";  // with fused_gate_up
  std::string_view down = "down_proj";
  std::string_view router = "gate";  // with experts

  bool operator==(const ModuleNames&) const = default;
};

inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxExperts = 512;

// Mixture of experts in place of the MLP; num_experts == 0: a dense MLP.
struct MoeConfig {
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = false;  // the weights of a token's experts are divided by their sum
  // F of an expert that all tokens share, behind a gate (Qwen3.5); 0: none.
  std::int64_t shared_intermediate_size = 0;
  RouterScore score = RouterScore::kSoftmax;
  bool expert_bias = false;         // of scores where experts are chosen (LFM2)
  float routed_scaling_factor = 1;  // of the weights of a token's experts
  bool router_bias = false;
  // Of experts in the place of the MLP: the checkpoint has two parameters for all experts of a
  // layer, gate_up_proj with gate at its even outputs and up at its odd ones, and down_proj
  // (gpt-oss).
  bool is_joined = false;

  bool operator==(const MoeConfig&) const = default;
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
  bool mlp_bias = false;   // also of experts
  bool conv_bias = false;  // of a short convolution and its two linears
  QkNorm qk_norm = QkNorm::kNone;
  OutputGate output_gate = OutputGate::kNone;
  bool sinks = false;          // each softmax has one more term (ops::AttentionSinks)
  bool value_norm = false;     // RMSNorm of each head of values, without a weight (Gemma 4)
  bool one_plus_norm = false;  // norm weights are stored as w - 1 (Gemma)
  bool input_norms = true;     // RMSNorm of the input of each block (not in Olmo)
  bool post_norms = false;  // RMSNorm of each block's output before it joins the residual (Gemma)
  bool fused_qkv = false;   // qkv_proj instead of three linears (Phi-3)
  bool fused_gate_up = false;  // gate_up_proj instead of two linears (Phi-3, GLM-4)
  // in_proj_qkvz and in_proj_ba instead of four linears of a delta rule, whose rows go from key
  // head to key head (Qwen3-Next): q, k, the r value heads v that read them and their z; r b, then
  // r a.
  bool fused_delta = false;
  float embed_scale = 1;
  float noise_scale = 1;        // of NEFTune's noise: embed_scale where the noise comes before it
  float residual_scale = 1;     // of each block's output as it joins the residual (Granite); > 0
  float logit_scale = 1;        // of logits (Granite: 1 / logits_scaling)
  float attention_scale = 0;    // multiplies q . k
  float attention_softcap = 0;  // 0: none
  float final_softcap = 0;      // 0: none
  bool layer_scalar = false;    // a number by which each layer's output is multiplied (Gemma 4)
  // A second embedding with a part for each layer, which joins the stream behind the layer's MLP
  // (Gemma 4's E models; pass/blocks/per_layer.h).
  std::int64_t per_layer_size = 0;   // P: hidden_size_per_layer_input; 0: none
  std::int64_t per_layer_vocab = 0;  // rows of its table, of L * P values each

  ModuleNames names;
  // What paths of modules have in the place of "model." in the class that this config.json names;
  // adapters are written with it.
  std::string module_prefix = "model.";

  DeltaRuleShape delta_rule;   // of layers with Mixer::kDeltaRule
  std::int64_t conv_taps = 0;  // of the convolution in layers with a state

  std::vector<RopeConfig> ropes;
  std::vector<LayerConfig> layers;  // L; see layer()
  MoeConfig moe;
  // Experts beside the MLP of each layer (Gemma 4's 26B-A4B; pass/blocks/side_mlp.h), and the width
  // M of one. Their weights always have the sum 1.
  MoeConfig side_moe;
  std::int64_t side_intermediate_size = 0;

  Fp8Blocks fp8_blocks;  // of weights in 8-bit floating point

  // Remarks for the user: settings of the file that are not followed.
  std::vector<std::string> notes;

  // The layers that this process has: all of them, or a stage of a pipeline. The embedding belongs
  // to the first layer, the output head to the last.
  IndexRange stage = {};  // empty: all
  IndexRange layers_here() const {
    return stage.size() > 0 ? stage : IndexRange{0, num_hidden_layers};
  }
  bool has_embedding() const { return layers_here().begin == 0; }
  bool has_head() const { return layers_here().end == num_hidden_layers; }

  // Layer l with all its sizes.
  LayerConfig layer(std::int64_t l) const;
  bool has_experts(std::int64_t l) const { return moe.num_experts > 0 && !layers[l].is_dense; }
  // Channels of the convolution before the delta rule: q and k of its key heads, v of its heads.
  std::int64_t delta_conv_features() const {
    return 2 * delta_rule.key_heads * delta_rule.key_dim + delta_value_features();
  }
  std::int64_t delta_value_features() const { return delta_rule.heads * delta_rule.value_dim; }
  // Values that one norm of the queries, or of the keys, of layer l has.
  std::int64_t q_norm_size(std::int64_t l) const;
  std::int64_t k_norm_size(std::int64_t l) const;
  // Whether a later layer attends to the keys and values of layer l.
  bool is_kv_shared(std::int64_t l) const;
  // In the place of the MLP, or beside it.
  const MoeConfig& experts() const { return moe.num_experts > 0 ? moe : side_moe; }
  // Whether the experts of a layer are two parameters in the checkpoint, and so in an adapter:
  // those of gpt-oss, and those beside an MLP, gate_up_proj (E, 2 M, D) and down_proj (E, D, M).
  bool joins_experts() const { return moe.is_joined || side_moe.num_experts > 0; }
  std::int64_t per_layer_features() const { return num_hidden_layers * per_layer_size; }  // L*P
  // Passes keep the residual stream divided by residual_scale, so that a block joins it as it is.
  // RMSNorm undoes the division when its epsilon is divided as well.
  float stream_embed_scale() const { return embed_scale / residual_scale; }
  float stream_eps() const { return rms_norm_eps / (residual_scale * residual_scale); }

  bool operator==(const DecoderConfig&) const = default;
};

// Reads the content of a config.json (Hugging Face transformers 4 and 5 spellings; the text part of
// a multimodal model). where: the file, for messages. Errors: InvalidInput naming the file and the
// key: unknown architecture, rope type or activation, a quantization_config other than bitsandbytes
// 4-bit and fp8, settings that contradict each other, missing or absurd sizes.
DecoderConfig ParseDecoderConfig(const Json& root, const std::string& where);

// Errors: InvalidInput for sizes, caps and scales that no decoder has, whatever file they come
// from.
void CheckSizes(const DecoderConfig& config, const std::string& where);
// The same for the sizes of single layers, once the layers are there.
void CheckLayerSizes(const DecoderConfig& config, const std::string& where);

}  // namespace qlora

#endif  // QLORA_CONFIG_CONFIG_H_
