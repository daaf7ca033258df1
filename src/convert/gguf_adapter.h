// The way back from an adapter GGUF, to verify it.
#ifndef QLORA_CONVERT_GGUF_ADAPTER_H_
#define QLORA_CONVERT_GGUF_ADAPTER_H_

#include <filesystem>

#include "model/config.h"
#include "model/lora.h"

namespace qlora {

// Overwrites the matrices of `adapter` with the matrices of a GGUF adapter of the same shape, so
// that scale * B A is the term that llama.cpp adds to the weight. Rows that llama.cpp reorders come
// back in the order of Hugging Face. Errors: InvalidInput for missing tensors or other shapes.
void LoadGgufAdapter(const std::filesystem::path& path, const DecoderConfig& config,
                     LoraAdapter& adapter);

}  // namespace qlora

#endif  // QLORA_CONVERT_GGUF_ADAPTER_H_
