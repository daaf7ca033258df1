// Adapters of mlx-lm (github.com/ml-explore/mlx-lm): a folder with adapter_config.json and
// adapters.safetensors.
//   model.layers.N.self_attn.q_proj.lora_a                (I, R)
//   model.layers.N.self_attn.q_proj.lora_b                (R, O)
//   model.layers.N.self_attn.q_proj.m                     (O) with fine_tune_type "dora"
//   model.layers.N.mlp.switch_mlp.gate_proj.lora_a, _b    (E, R, I), (E, O, R) of all experts
//   lm_head.lora_a, _b                                    (D, R), (R, V)
//   model.embed_tokens.lora_a, _b                         (V, R), (R, D)
// lora_parameters of the configuration has one rank for all, and a scale that multiplies directly.
// The loader gives every module that "keys" names in the last "num_layers" layers an adapter; one
// without tensors has no effect.
#ifndef QLORA_ADAPTER_MLX_ADAPTER_H_
#define QLORA_ADAPTER_MLX_ADAPTER_H_

#include <filesystem>

#include "adapter/lora_values.h"
#include "config/config.h"
#include "qlora/tensor.h"

namespace qlora {

// The file of the weights in the folder.
inline constexpr const char* kMlxWeights = "adapters.safetensors";

// Errors: InvalidInput for whole fine-tuned weights, modules or shapes of another model, a LoRA on
// embeddings that the head shares (mlx changes both, PEFT the embeddings alone), NaN and Inf.
AdapterValues ReadMlxValues(const std::filesystem::path& folder, const DecoderConfig& decoder,
                            const ProgressFn& progress = {});

// Writes both files into `folder` (made when missing), converted to `dtype`. Ranks below the
// largest are filled up with zeros; scales other than the first module's are folded into B. Errors:
// InvalidInput for what mlx-lm computes otherwise; Runtime when a value cannot be stored as `dtype`
// or the disk is full.
void WriteMlxAdapter(const std::filesystem::path& folder, const AdapterValues& adapter,
                     const DecoderConfig& decoder, DType dtype);

}  // namespace qlora

#endif  // QLORA_ADAPTER_MLX_ADAPTER_H_
