#include "model/families.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "base/spelling.h"
#include "base/text.h"

namespace qlora {
namespace {

constexpr ModuleNames kGemmaNames = {.mlp_norm = "pre_feedforward_layernorm"};
constexpr ModuleNames kLfm2Names = {.input_norm = "operator_norm",
                                    .mlp_norm = "ffn_norm",
                                    .final_norm = "embedding_norm",
                                    .q_norm = "self_attn.q_layernorm",
                                    .k_norm = "self_attn.k_layernorm",
                                    .o = "self_attn.out_proj",
                                    .mlp = "feed_forward",
                                    .gate = "w1",
                                    .up = "w3",
                                    .down = "w2"};

// The differences between families, other than sizes:
//
//   llama         biases by attention_bias and mlp_bias; also SmolLM2, TinyLlama and others
//   mistral       a window in each layer, if sliding_window is not null
//   qwen2         biases on q, k and v, and never on o
//   qwen3         a norm of each query and key head
//   gemma2        a window in every second layer, softcaps; norms after each block
//   gemma3_text   a window and a separate rotary table in five layers of six; norms
//                 after each block, head norms
//   phi3          q, k and v are one linear, gate and up another; part of a head may rotate
//   smollm3       every fourth layer has no rotary embedding
//   qwen3_moe     qwen3 with experts in place of the MLP
//   mixtral       mistral with experts in place of the MLP
//   gemma         one norm before each block, 1 + w
//   ministral3    mistral whose queries grow with the position
//   granite       llama with a multiplier of embedding, scores, blocks and logits;
//   granitemoehybrid   the same with other names, as far as it has no mamba and no experts
//   olmo2, olmo3  norms after each block alone, and one norm of all query heads and of all key
//                 heads; olmo3 has a window in three layers of four, and scales the frequencies of
//                 the fourth
//   hunyuan_v1_dense   norms of heads come after RoPE
//   ernie4_5      neighbouring dims rotate together
//   seed_oss      biases on q, k and v
//   glm4          norms before and after each block, gate and up are one linear, and the first half
//                 of a head rotates, neighbouring dims together
//   qwen3_5_text  a gated delta rule in three layers of four, and attention with gates of its
//                 output; 1+w norms
//   qwen3_5_moe_text   the same with experts, of which one is for all tokens
//   qwen3_next    qwen3_5_moe_text whose delta rules have two linears in the place of four
//   lfm2          short convolutions in most layers
//   lfm2_moe      the same with experts in all but the first layers, chosen by sigmoids and a bias
//   gpt_oss       mixtral with attention sinks, biases everywhere, a clamped activation, and a
//                 window in every second layer
//   gemma4_text   gemma3 with norms of values, other head sizes in layers without a window, and, by
//                 keys, values that are keys, layers that share keys and values, an embedding
//                 for each layer, experts beside the MLP; w norms
//   qwen2_5_vl_text, qwen3_vl_text   qwen2 and qwen3 inside of a model that sees
constexpr auto kFamilies = std::to_array<Family>({
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .vocab_size = 32000,
     .max_position_embeddings = 2048,
     .bias = BiasRule::kKey,
     .mlp_bias_key = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .vocab_size = 32000,
     .max_position_embeddings = 131072,
     .num_key_value_heads = 8,
     .sliding_window = 4096,
     .window = WindowRule::kAll},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .vocab_size = 151936,
     .max_position_embeddings = 32768,
     .num_key_value_heads = 32,
     .sliding_window = 4096,
     .window = WindowRule::kUpper,
     .bias = BiasRule::kQkvOnly},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .vocab_size = 151936,
     .max_position_embeddings = 32768,
     .num_key_value_heads = 32,
     .head_dim = 128,
     .sliding_window = 4096,
     .window = WindowRule::kUpper,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .vocab_size = 256000,
     .max_position_embeddings = 8192,
     .num_attention_heads = 8,
     .num_key_value_heads = 4,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .sliding_window = 4096,
     .window = WindowRule::kPeriod,
     .window_period = 2,
     .bias = BiasRule::kKey,
     .one_plus_norm = true,
     .gemma = true,
     .query_scalar = true,
     .post_norms = true,
     .attention_softcap = 50,
     .final_softcap = 30,
     .names = kGemmaNames},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .vocab_size = 262208,
     .max_position_embeddings = 131072,
     .num_attention_heads = 8,
     .num_key_value_heads = 4,
     .head_dim = 256,
     .rope_theta = 1e6,
     .tie_word_embeddings = true,
     .sliding_window = 4096,
     .window = WindowRule::kPeriod,
     .window_period = 6,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads,
     .one_plus_norm = true,
     .gemma = true,
     .query_scalar = true,
     .post_norms = true,
     .local_rope = true,
     .names = kGemmaNames},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .vocab_size = 32064,
     .max_position_embeddings = 4096,
     .rms_norm_eps = 1e-5,
     .window = WindowRule::kAll,
     .fused_qkv = true,
     .fused_gate_up = true},
    {.model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .vocab_size = 128256,
     .max_position_embeddings = 32768,
     .num_attention_heads = 16,
     .num_key_value_heads = 4,
     .rope_theta = 2e6,
     .tie_word_embeddings = true,
     .window = WindowRule::kNoRope,
     .bias = BiasRule::kKey,
     .mlp_bias_key = true},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .vocab_size = 151936,
     .max_position_embeddings = 32768,
     .num_key_value_heads = 4,
     .sliding_window = 4096,
     .window = WindowRule::kAllIfUsed,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads,
     .moe = true,
     .experts = {.num_experts = 128, .num_experts_per_tok = 8, .intermediate_size = 768}},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .vocab_size = 32000,
     .max_position_embeddings = 131072,
     .num_key_value_heads = 8,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .window = WindowRule::kAll,
     .moe = true,
     .experts = {.num_experts = 8, .num_experts_per_tok = 2, .always_normalized = true},
     .names = {.mlp = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"}},
    {.model_type = "gemma",
     .architecture = "GemmaForCausalLM",
     .vocab_size = 256000,
     .max_position_embeddings = 8192,
     .num_attention_heads = 16,
     .num_key_value_heads = 16,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .bias = BiasRule::kKey,
     .one_plus_norm = true,
     .gemma = true},
    {.model_type = "ministral3",
     .architecture = "Ministral3ForCausalLM",
     .vocab_size = 131072,
     .max_position_embeddings = 262144,
     .num_key_value_heads = 8,
     .head_dim = 128,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .window = WindowRule::kAll},
    {.model_type = "granite",
     .architecture = "GraniteForCausalLM",
     .vocab_size = 32000,
     .max_position_embeddings = 2048,
     .bias = BiasRule::kKey,
     .mlp_bias_key = true,
     .multipliers = true},
    {.model_type = "granitemoehybrid",
     .architecture = "GraniteMoeHybridForCausalLM",
     .vocab_size = 32000,
     .max_position_embeddings = 2048,
     .bias = BiasRule::kKey,
     .fused_gate_up = true,
     .multipliers = true,
     .names = {.mlp = "shared_mlp", .gate_up = "input_linear", .down = "output_linear"}},
    {.model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .vocab_size = 50304,
     .max_position_embeddings = 2048,
     .rms_norm_eps = 1e-5,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kProjection,
     .input_norms = false,
     .post_norms = true},
    {.model_type = "olmo3",
     .architecture = "Olmo3ForCausalLM",
     .vocab_size = 50304,
     .max_position_embeddings = 2048,
     .rms_norm_eps = 1e-5,
     .rope_theta = 5e5,
     .sliding_window = 4096,
     .window = WindowRule::kPeriod,
     .window_period = 4,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kProjection,
     .input_norms = false,
     .post_norms = true,
     .local_rope = true},
    {.model_type = "hunyuan_v1_dense",
     .architecture = "HunYuanDenseV1ForCausalLM",
     .vocab_size = 290943,
     .max_position_embeddings = 2048,
     .rms_norm_eps = 1e-5,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kRotatedHeads,
     .names = {.q_norm = "self_attn.query_layernorm", .k_norm = "self_attn.key_layernorm"}},
    {.model_type = "ernie4_5",
     .architecture = "Ernie4_5ForCausalLM",
     .vocab_size = 103424,
     .max_position_embeddings = 131072,
     .num_attention_heads = 16,
     .num_key_value_heads = 2,
     .head_dim = 128,
     .rms_norm_eps = 1e-5,
     .rope_theta = 5e5,
     .tie_word_embeddings = true,
     .bias = BiasRule::kAllByKey,
     .interleaved_rope = true},
    {.model_type = "seed_oss",
     .architecture = "SeedOssForCausalLM",
     .vocab_size = 155136,
     .max_position_embeddings = 524288,
     .num_attention_heads = 80,
     .num_key_value_heads = 8,
     .head_dim = 128,
     .bias = BiasRule::kTwoKeys,
     .attention_bias = true,
     .mlp_bias_key = true},
    {.model_type = "glm4",
     .architecture = "Glm4ForCausalLM",
     .vocab_size = 151552,
     .max_position_embeddings = 131072,
     .num_key_value_heads = 2,
     .head_dim = 128,
     .rms_norm_eps = 1.5625e-7,
     .bias = BiasRule::kQkvKey,
     .attention_bias = true,
     .post_norms = true,
     .fused_gate_up = true,
     .interleaved_rope = true,
     .partial_rotary_factor = 0.5,
     .names = {.post_attn_norm = "post_self_attn_layernorm",
               .post_mlp_norm = "post_mlp_layernorm"}},
    {.model_type = "qwen2_5_vl_text",
     .architecture = "Qwen2_5_VLTextModel",
     .vocab_size = 152064,
     .max_position_embeddings = 32768,
     .num_attention_heads = 64,
     .num_key_value_heads = 8,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .sliding_window = 4096,
     .window = WindowRule::kUpper,
     .max_window_layers = 80,
     .bias = BiasRule::kQkvOnly},
    {.model_type = "qwen3_vl_text",
     .architecture = "Qwen3VLTextModel",
     .vocab_size = 151936,
     .max_position_embeddings = 128000,
     .num_key_value_heads = 32,
     .head_dim = 128,
     .rope_theta = 5e5,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads},
    {.model_type = "qwen3_5_text",
     .architecture = "Qwen3_5ForCausalLM",
     .vocab_size = 248320,
     .max_position_embeddings = 32768,
     .num_attention_heads = 16,
     .num_key_value_heads = 4,
     .head_dim = 256,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads,
     .mixers = MixerRule::kDeltaRule,
     .output_gate = true,
     .one_plus_norm = true,
     .partial_rotary_factor = 0.25},
    {.model_type = "qwen3_5_moe_text",
     .architecture = "Qwen3_5MoeForCausalLM",
     .vocab_size = 248320,
     .max_position_embeddings = 32768,
     .num_attention_heads = 16,
     .num_key_value_heads = 2,
     .head_dim = 256,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads,
     .mixers = MixerRule::kDeltaRule,
     .output_gate = true,
     .one_plus_norm = true,
     .moe = true,
     .experts = {.num_experts = 256,
                 .num_experts_per_tok = 8,
                 .intermediate_size = 512,
                 .shared_intermediate_size = 512,
                 .always_normalized = true},
     .partial_rotary_factor = 0.25},
    {.model_type = "qwen3_next",
     .architecture = "Qwen3NextForCausalLM",
     .vocab_size = 151936,
     .max_position_embeddings = 32768,
     .num_attention_heads = 16,
     .num_key_value_heads = 2,
     .head_dim = 256,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads,
     .mixers = MixerRule::kDeltaRule,
     .output_gate = true,
     .one_plus_norm = true,
     .fused_delta = true,
     .moe = true,
     .experts = {.num_experts = 512,
                 .num_experts_per_tok = 10,
                 .intermediate_size = 512,
                 .shared_intermediate_size = 512,
                 .norm_topk_prob = true},
     .partial_rotary_factor = 0.25},
    {.model_type = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .vocab_size = 201088,
     .max_position_embeddings = 131072,
     .num_attention_heads = 64,
     .num_key_value_heads = 8,
     .head_dim = 64,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1.5e5,
     .sliding_window = 128,
     .window = WindowRule::kPeriod,
     .window_period = 2,
     .bias = BiasRule::kKey,
     .attention_bias = true,
     .moe = true,
     .gpt_oss = true,
     .names = {.router = "router"}},
    {.model_type = "lfm2",
     .architecture = "Lfm2ForCausalLM",
     .vocab_size = 65536,
     .max_position_embeddings = 128000,
     .num_key_value_heads = 8,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .tie_word_embeddings = true,
     .qk_norm = QkNorm::kHeads,
     .mixers = MixerRule::kShortConv,
     .names = kLfm2Names},
    {.model_type = "lfm2_moe",
     .architecture = "Lfm2MoeForCausalLM",
     .vocab_size = 65536,
     .max_position_embeddings = 128000,
     .num_key_value_heads = 8,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .tie_word_embeddings = true,
     .qk_norm = QkNorm::kHeads,
     .mixers = MixerRule::kShortConv,
     .moe = true,
     .experts = {.num_experts = 32,
                 .num_experts_per_tok = 4,
                 .intermediate_size = 1792,
                 .norm_topk_prob = true,
                 .score = RouterScore::kSigmoid},
     .names = kLfm2Names},
    {.model_type = "gemma4_text",
     .architecture = "Gemma4ForCausalLM",
     .vocab_size = 262144,
     .max_position_embeddings = 131072,
     .num_attention_heads = 8,
     .num_key_value_heads = 4,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .sliding_window = 512,
     .window = WindowRule::kPeriod,
     .window_period = 6,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads,
     .gemma = true,
     .gemma4 = true,
     .per_layer_size = 256,
     .post_norms = true,
     .local_rope = true,
     .names = kGemmaNames},
    {.model_type = "gemma4_unified_text",
     .architecture = "Gemma4UnifiedForCausalLM",
     .vocab_size = 262144,
     .max_position_embeddings = 131072,
     .num_attention_heads = 8,
     .num_key_value_heads = 4,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .sliding_window = 1024,
     .window = WindowRule::kPeriod,
     .window_period = 6,
     .bias = BiasRule::kKey,
     .qk_norm = QkNorm::kHeads,
     .gemma = true,
     .gemma4 = true,
     .post_norms = true,
     .local_rope = true,
     .names = kGemmaNames},
});

constexpr auto kWrappers = std::to_array<Wrapper>({
    {.model_type = "gemma3", .text = "gemma3_text", .tie_word_embeddings = true},
    {.model_type = "gemma4", .text = "gemma4_text", .tie_word_embeddings = true},
    {.model_type = "gemma4_unified", .text = "gemma4_unified_text", .tie_word_embeddings = true},
    {.model_type = "mistral3", .text = "mistral", .names_text = true, .tie_word_embeddings = true},
    {.model_type = "qwen2_5_vl", .text = "qwen2_5_vl_text"},
    {.model_type = "qwen3_vl", .text = "qwen3_vl_text"},
    {.model_type = "qwen3_5", .text = "qwen3_5_text"},
    {.model_type = "qwen3_5_moe", .text = "qwen3_5_moe_text"},
    {.model_type = "lfm2_vl", .text = "lfm2", .tie_word_embeddings = true},
});

// What models have that nothing here computes, by the model types that people ask for most.
struct Unsupported {
  std::string_view has;
  std::string_view model_types;  // separated by spaces
};
constexpr auto kUnsupported = std::to_array<Unsupported>({
    {"several residual streams at once (AltUp)", "gemma3n gemma3n_text"},
    {"layers of linear attention", "kimi_linear minimax"},
    {"latent attention (MLA)",
     "deepseek_v2 deepseek_v3 deepseek_v32 mistral4 kimi_k2 minicpm3 glm_moe_dsa"},
    {"state-space layers (Mamba)", "mamba mamba2 falcon_mamba falcon_h1 nemotron_h bamba jamba"},
    {"this kind of experts",
     "qwen2_moe llama4 llama4_text glm4_moe ernie4_5_moe granitemoe hunyuan_v1_moe"},
    {"experts in a model that sees", "qwen3_vl_moe"},
    {"LayerNorm", "gpt2 gpt_neox opt bloom falcon phi cohere cohere2 stablelm starcoder2"},
});

std::string WhatIsMissing(std::string_view model_type) {
  for (const Unsupported& some : kUnsupported) {
    if (!HasWord(some.model_types, model_type)) continue;
    return fmt::format(" (missing here: {})", some.has);
  }
  return "";
}

}  // namespace

const Wrapper* FindWrapper(std::string_view model_type) {
  const auto* const found = std::ranges::find(kWrappers, model_type, &Wrapper::model_type);
  return found == kWrappers.end() ? nullptr : found;
}

const Family& FamilyOf(const std::string& model_type, const std::string& where) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return family;
  }
  std::vector<std::string> known;
  for (const Family& family : kFamilies) known.emplace_back(family.model_type);
  for (const Wrapper& wrapper : kWrappers) known.emplace_back(wrapper.model_type);
  const std::string near = Nearest(model_type, known);
  ThrowInvalidInput("{}: model_type '{}' is not supported{}{}; supported: {}", where, model_type,
                    WhatIsMissing(model_type),
                    near.empty() ? "" : fmt::format("; the nearest name is '{}'", near),
                    SupportedModelTypes());
}

void ApplyFamily(const Family& family, DecoderConfig& config) {
  config.architecture = family.architecture;
  config.qk_norm = family.qk_norm;
  config.output_gate = family.output_gate;
  config.value_norm = config.layer_scalar = family.gemma4;
  config.input_norms = family.input_norms;
  config.post_norms = family.post_norms;
  config.fused_qkv = family.fused_qkv;
  config.fused_gate_up = family.fused_gate_up;
  config.fused_delta = family.fused_delta;
  config.names = family.names;
  config.sinks = config.moe.router_bias = config.moe.is_joined = family.gpt_oss;
  if (family.gpt_oss) config.mlp_bias = true;
}

std::string SupportedModelTypes() {
  std::string names;
  for (const Family& family : kFamilies) {
    if (!names.empty()) names += ", ";
    names += family.model_type;
  }
  return names;
}

}  // namespace qlora
