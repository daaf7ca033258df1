// The families of models that are supported.
#ifndef QLORA_CONFIG_FAMILIES_H_
#define QLORA_CONFIG_FAMILIES_H_

#include <cstdint>
#include <functional>
#include <optional>
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
  kPeriod,     // all but one of each `window_period` layers
  kTypes,      // those that layer_types names
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
// Which pairs of a head turn with a partial_rotary_factor below 1.
enum class PartialRotation : std::uint8_t {
  kFirstDims,         // those of the first dims, as if these were the head
  kProportional,      // the first pairs of the whole head, where rope_type is proportional
  kAlwaysFirstPairs,  // the same where it is default, too
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
  // In transformers 5 experts are parameters. PEFT converts a LoRA of each expert in some families;
  // in these it passes over it without a word.
  bool needs_parameters = false;
  bool has_dense_layers = false;  // where mlp_only_layers or decoder_sparse_step says so
  RouterScore score = RouterScore::kSoftmax;
};

// What a part of positions is in files of models that see (rope.dimension_sections).
enum class PositionSections : std::uint8_t { kNone, kRead, kRefused };
// What llama.cpp makes of windows.
enum class GgufWindows : std::uint8_t {
  kIgnored,
  kPeriod,  // attention.sliding_window_pattern is a period, or a list that files of others have
  kList,    // it is a list with a bool for each block
};
// What the graph does with the tensor rope_freqs, which divides the frequencies.
enum class GgufDivisors : std::uint8_t {
  kUnread,
  kRead,
  kNeeded,  // in layers without a window; a pair that stays has a large number there
};
// Of layers with a window: what rope.freq_base_swa is.
enum class GgufLocalBase : std::uint8_t {
  kUnread,
  kOf10000,   // 10000 without the key
  kOfOthers,  // without the key, the base of the others
  kNeeded,
};

// Which weights the graph multiplies the products of by a scale, NAME.scale, where a file has one,
// as the sources of llama.cpp say.
enum class GgufScales : std::uint8_t {
  kNone,  // or not of q, k and v, as Olmo 2's
  kAttention,
  kAttentionAndExperts,  // not of the delta rule
  kAll,
};

// How llama.cpp calls a family, and what it computes of it in its own way;
// config/gguf_config_json.h has what all share.
struct GgufFamily {
  // The value of general.architecture; empty: llama.cpp has none. Of families of one architecture
  // the one that files without further keys are stands first in the table.
  std::string_view architecture = {};
  // Neighbouring dims of a head rotate together, not dims i and i + K/2 as in the checkpoint.
  bool interleaved_rotary = false;
  // One linear of the checkpoint holds gate and up, and the file has two tensors.
  bool splits_gate_up = false;
  std::string_view mlp_norm = "ffn_norm";
  std::string_view final_norm = "output_norm";
  bool derived_heads = false;   // heads have no size of their own: embedding_length / head_count
  bool is_llama = false;        // feed_forward_length is an expert's, and rope_factors count
  bool is_tied = false;         // has no head of its own, whatever tensors there are
  bool needs_head = false;      // has no tied head
  bool qkv_bias = true;         // files may have biases of q, k and v
  bool o_bias = false;          // one of o, which llama.cpp adds
  bool mlp_bias = false;        // and biases of the MLP
  bool rotates_partly = false;  // rope.dimension_count may be less than a head
  bool always_reads_factors = false;  // rope_factors count whatever rope.scaling.type says
  GgufDivisors divisors = GgufDivisors::kUnread;
  GgufLocalBase local_base = GgufLocalBase::kUnread;
  // Layers with a window turn unscaled, with the base of the others.
  bool plain_local = false;
  bool may_not_rotate = false;  // where rope.scaling.finetuned is false
  PositionSections sections = PositionSections::kNone;
  std::int64_t layers_of_27b = 0;  // whose scores are divided by sqrt(D / H)
  GgufWindows windows = GgufWindows::kIgnored;
  bool needs_windows = false;          // of at least one layer
  std::int64_t window = 0;             // without attention.sliding_window
  std::int64_t layers_of_windows = 0;  // files of another number of blocks have no windows
  GgufScales scales = GgufScales::kNone;
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
  std::string_view hidden_act = "silu";
  std::string_view only = "{}";  // a JSON object: keys with the only value that is supported
  double rms_norm_eps = 1e-6;
  double rope_theta = 1e4;
  bool tie_word_embeddings = false;
  std::int64_t sliding_window = 0;  // when the key is missing; 0: null
  WindowRule window = WindowRule::kNone;
  std::int64_t max_window_layers = 28;  // of kUpper, when the key is missing
  std::int64_t window_period = 0;       // of kPeriod, when sliding_window_pattern is missing
  bool first_is_full = false;           // of a period, not the last
  // Layers without a window do not rotate where sliding_window is not null.
  bool full_stays = false;
  BiasRule bias = BiasRule::kNone;
  bool attention_bias = false;  // when the key is missing
  bool mlp_bias_key = false;
  QkNorm qk_norm = QkNorm::kNone;
  MixerRule mixers = MixerRule::kAttention;
  std::int64_t conv_taps = 3;  // of kShortConv, when conv_L_cache is missing
  OutputGate output_gate = OutputGate::kNone;
  std::string_view output_gate_key = {};  // the gate is there where this key is true; empty: always
  bool sinks = false;
  bool one_plus_norm = false;
  bool gemma = false;  // scaled embedding
  // Norms of values, a scalar of each layer, layers that share keys and values
  // (config_gemma4.h).
  bool gemma4 = false;
  bool lfm2 = false;                // keys of its own for the width of the MLP and the tied head
  std::int64_t per_layer_size = 0;  // when hidden_size_per_layer_input is missing
  bool query_scalar = false;        // scores are divided by sqrt(query_pre_attn_scalar)
  bool input_norms = true;
  bool post_norms = false;
  bool may_lack_post_norms = false;  // in files that have none of their tensors
  bool fused_qkv = false;
  bool fused_gate_up = false;
  bool fused_delta = false;
  bool moe = false;
  ExpertDefaults experts = {};  // with moe
  // Experts with biases and a clamped activation, in two parameters a layer.
  bool gpt_oss = false;
  bool multipliers = false;   // embedding_, attention_, residual_multiplier and logits_scaling
  bool layer_thetas = false;  // layer_rope_theta has the rope_theta of each layer
  // Layers with a window have a table of rotary frequencies of their own.
  bool local_rope = false;
  // rope_parameters has a part for each of the two kinds of layers, or is that of both.
  bool ropes_by_type = false;
  bool interleaved_rope = false;
  bool query_scale = false;           // queries grow with the position (llama_4_scaling_beta)
  bool scales_by_lists = false;       // rope_scaling is of type longrope, or null
  std::int64_t no_rope_interval = 0;  // each such layer does not rotate, without no_rope_layers
  double partial_rotary_factor = 1;   // when the key is missing
  PartialRotation partial_rotation = PartialRotation::kFirstDims;
  float attention_softcap = 0;
  float final_softcap = 0;
  // The words of a name are its spellings, of which a checkpoint has one (SpelledNames).
  ModuleNames names = {};
  // The family of text alone that computes the same of text; empty where it is one.
  std::string_view of_text = {};
  GgufFamily gguf = {};
};

// where: for the message. Errors: InvalidInput for another model type.
const Family& FamilyOf(const std::string& model_type, const std::string& where);
// Of another model type: a family without an architecture.
const GgufFamily& GgufFamilyOf(std::string_view model_type);
// The first of the families of an architecture; nullptr where there is none.
const Family* FindFamilyOfArchitecture(std::string_view architecture);

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

// By the value of hidden_act; nothing for other names.
std::optional<Activation> ActivationNamed(std::string_view name);

// The known model types, for messages: "llama, mistral, ...".
std::string SupportedModelTypes();

// ---- Names of modules, where a family has several spellings.

bool HasSpellings(const Family& family);
// Returns the spelling of each name that a checkpoint has, otherwise the first. has: whether it has
// tensors of these modules, "self_attn.q_norm".
ModuleNames SpelledNames(const Family& family,
                         const std::function<bool(std::string_view modules)>& has);
// What the tensor is to its layer or decoder, and its other spellings, for messages; "" of names
// that are the same in all families.
std::string RoleOf(const DecoderConfig& config, std::string_view tensor);

}  // namespace qlora

#endif  // QLORA_CONFIG_FAMILIES_H_
