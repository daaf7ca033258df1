// Exports from a base that is a GGUF file itself, and what a checkpoint of Hugging Face takes from
// it.
#ifndef QLORA_CONVERT_GGUF_BASE_H_
#define QLORA_CONVERT_GGUF_BASE_H_

#include <filesystem>
#include <string>

#include "adapter/lora.h"
#include "config/config.h"
#include "io/json_fwd.h"

namespace qlora {

// Errors: InvalidInput where llama.cpp would refuse a GGUF adapter of this adapter beside `file`:
// the file holds an adapted linear as a part of another tensor, or as several.
void CheckFitsGguf(const std::filesystem::path& file, const DecoderConfig& config,
                   const LoraAdapter& adapter);

// Returns config.json of a model: of its folder, or made of the keys of a GGUF file. Errors:
// InvalidInput also for a file whose model no config.json can state, or whose tokenizer is not
// read.
Json CheckpointConfig(const std::filesystem::path& model);

// LoadDecoderConfig of a model of which a checkpoint is made: the value heads of a delta rule are
// in the checkpoint's order, in which OpenCheckpoint then reads a GGUF file too.
DecoderConfig LoadForCheckpoint(const std::filesystem::path& model);

// Writes the tokenizer of a GGUF file, with templates and ends, into the folder of a checkpoint.
// Returns a remark where a text has other ids in the folder than in the file, otherwise "".
std::string WriteTokenizerOf(const std::filesystem::path& file,
                             const std::filesystem::path& folder);

}  // namespace qlora

#endif  // QLORA_CONVERT_GGUF_BASE_H_
