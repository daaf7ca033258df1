// The way back from GGUF: weights and adapters as the decoder holds them.
#ifndef QLORA_CONVERT_GGUF_WEIGHTS_H_
#define QLORA_CONVERT_GGUF_WEIGHTS_H_

#include <filesystem>

#include "model/config.h"
#include "model/lora.h"
#include "model/weights.h"
#include "qlora/context.h"

namespace qlora {

// Reads the dense weights of a GGUF model of this configuration. Rows that llama.cpp reorders come
// back in the order of Hugging Face. The weights are allocated in `memory`. progress: called after
// each layer. Errors: InvalidInput for missing tensors or other shapes.
DecoderWeights LoadGgufWeights(const std::filesystem::path& path, const DecoderConfig& config,
                               Memory& memory, const ProgressFn& progress = {});

// Overwrites the matrices of `adapter` with the matrices of a GGUF adapter of the same shape, so
// that scale * B A is the term that llama.cpp adds to the weight.
void LoadGgufAdapter(const std::filesystem::path& path, const DecoderConfig& config,
                     LoraAdapter& adapter);

}  // namespace qlora

#endif  // QLORA_CONVERT_GGUF_WEIGHTS_H_
