// The tensors of a GGUF model as the layers ask for them: under Hugging Face's names, shapes (rows,
// columns) and order of rows, with each expert by itself. The file's blocks are read in place where
// they can be:
//
//   blk.0.attn_q.weight         -> model.layers.0.self_attn.q_proj.weight, rows copied into order
//                                  where llama.cpp rotates neighbouring dims
//   blk.0.attn_qkv.weight       -> q_proj, k_proj, v_proj, or the other way (Phi-3)
//   blk.0.ffn_up_exps.weight    -> model.layers.0.mlp.experts.0.up_proj.weight, ...
//   blk.0.ffn_up.weight times   -> the products, in float32
//   blk.0.ffn_up.scale
#ifndef QLORA_MODEL_GGUF_CHECKPOINT_H_
#define QLORA_MODEL_GGUF_CHECKPOINT_H_

#include <memory>

#include "config/config.h"
#include "gguf/gguf.h"

namespace qlora {

// config: ParseGgufConfig of the file. Errors: InvalidInput naming a tensor that is missing, has
// another shape, or is none that llama.cpp reads in this architecture, since a tensor that is not
// read makes another model.
std::unique_ptr<TensorReader> OpenGgufCheckpoint(std::unique_ptr<GgufReader> file,
                                                 const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_GGUF_CHECKPOINT_H_
