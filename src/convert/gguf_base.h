// Exports from a base that is a GGUF file itself.
#ifndef QLORA_CONVERT_GGUF_BASE_H_
#define QLORA_CONVERT_GGUF_BASE_H_

#include <filesystem>
#include <string>

#include "model/config.h"
#include "model/lora.h"

namespace qlora {

// Errors: InvalidInput where llama.cpp would refuse a GGUF adapter of this adapter beside `file`:
// the file holds an adapted linear as a part of another tensor, or as several.
void CheckFitsGguf(const std::filesystem::path& file, const DecoderConfig& config,
                   const LoraAdapter& adapter);

// Refuses a checkpoint of Hugging Face as the output. verb: "export --format hf", for the message.
[[noreturn]] void RefuseCheckpointOf(const std::filesystem::path& file, const std::string& verb);

}  // namespace qlora

#endif  // QLORA_CONVERT_GGUF_BASE_H_
