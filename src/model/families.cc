#include "model/families.h"

#include <array>

#include "base/check.h"

namespace qlora {
namespace {

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
     .qk_norm = true},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .vocab_size = 256000,
     .max_position_embeddings = 8192,
     .num_attention_heads = 8,
     .num_key_value_heads = 4,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .sliding_window = 4096,
     .window = WindowRule::kEven,
     .bias = BiasRule::kKey,
     .gemma = true,
     .attention_softcap = 50,
     .final_softcap = 30},
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
     .window = WindowRule::kFiveOfSix,
     .bias = BiasRule::kKey,
     .qk_norm = true,
     .gemma = true},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .vocab_size = 32064,
     .max_position_embeddings = 4096,
     .rms_norm_eps = 1e-5,
     .window = WindowRule::kAll,
     .fused_linears = true},
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
     .qk_norm = true,
     .moe = true},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .vocab_size = 32000,
     .max_position_embeddings = 131072,
     .num_key_value_heads = 8,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .window = WindowRule::kAll,
     .moe = true},
});

}  // namespace

const Family& FamilyOf(const std::string& model_type, const std::string& where) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return family;
  }
  ThrowInvalidInput("{}: model_type '{}' is not supported; supported: {}", where, model_type,
                    SupportedModelTypes());
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
