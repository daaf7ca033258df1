// The tensors of a model's folder, or of its GGUF file (gguf_checkpoint.h), under the names, and in
// the pieces, that the layers ask for.
//
// The names are those of transformers' ...ForCausalLM: "model.layers.0.mlp.up_proj.weight". Other
// prefixes are replaced (io/checkpoint_names.h), except the two of multimodal models, which keep
// their own. Weights that another program joined are shown apart, as pieces of the stored tensor:
//
//   mlp.experts.gate_up_proj (E, 2F, D)   -> mlp.experts.0.gate_proj.weight (F, D), ...up_proj ...
//   mlp.experts.down_proj    (E, D, F)    -> mlp.experts.0.down_proj.weight (D, F), ...
//       or with the last two dims exchanged; also gate_proj and up_proj, one by one
//   self_attn.qkv_proj, mlp.gate_up_proj  -> q_proj, k_proj, v_proj; gate_proj, up_proj
//   q_proj, k_proj, v_proj ...            -> self_attn.qkv_proj, where the family has it (Phi-3)
//   ... and whatever else is in module_spellings.h
//
// Weights in 8-bit floating point are shown as F32 (io/fp8.h), and weights in 4 bits as dense ones
// where they are no linears, or in other pieces than these (decoded_bnb.h).
#ifndef QLORA_MODEL_CHECKPOINT_H_
#define QLORA_MODEL_CHECKPOINT_H_

#include <filesystem>
#include <memory>

#include "config/config.h"
#include "io/tensor_file.h"

namespace qlora {

// The configuration of a GGUF file (config/gguf_config.h), or of <model_dir>/config.json. Where
// config.json ties the head to the embedding, the weights of the folder are looked at
// (HoldsOwnHead). Errors: as ParseDecoderConfig.
DecoderConfig LoadDecoderConfig(const std::filesystem::path& model_dir);

// Opens the checkpoint of a model, a folder or a GGUF file; tensors that cannot be read are in
// TensorReader::unread. Errors: InvalidInput as OpenSafetensors, for two tensors that get one name,
// and for a checkpoint of a model with an adapter that was not merged.
std::unique_ptr<TensorReader> OpenCheckpoint(const std::filesystem::path& model_dir,
                                             const DecoderConfig& config);

// The tensors of a model as its files name them.
std::unique_ptr<TensorReader> OpenStoredTensors(const std::filesystem::path& model_dir);

// The name of the output head in a checkpoint that OpenCheckpoint opened: "lm_head.weight", or
// beside the language model of a multimodal checkpoint.
std::string HeadName(const TensorReader& reader);
// "model.", or what a multimodal checkpoint has instead.
std::string DecoderPrefix(const TensorReader& reader);
// Name of the embedding: "model.embed_tokens.weight".
std::string EmbeddingName(const TensorReader& reader);

// True when the checkpoint holds an output head with other values than the embedding: the model is
// not tied then, whatever config.json says. Reads both matrices.
bool HoldsOwnHead(const TensorReader& reader);

}  // namespace qlora

#endif  // QLORA_MODEL_CHECKPOINT_H_
