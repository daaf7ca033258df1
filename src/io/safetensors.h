// The safetensors format: checkpoints of Hugging Face, and adapters.
#ifndef QLORA_IO_SAFETENSORS_H_
#define QLORA_IO_SAFETENSORS_H_

#include <filesystem>
#include <memory>

#include "io/tensor_file.h"

namespace qlora {

// Opens safetensors (github.com/huggingface/safetensors): a file, an index
// (*.safetensors.index.json) with its shards in the same folder, or a directory with
// model.safetensors or its index. Errors: InvalidInput that names file and tensor, for anything
// that the format forbids: bytes outside the file, holes, overlaps, unknown types, missing or
// truncated shards; pickled checkpoints (.bin).
std::unique_ptr<TensorReader> OpenSafetensors(const std::filesystem::path& path);

// The same for a checkpoint, of which a model need not use every tensor: tensors of unknown types,
// tensors that the index names and no shard holds, and tensors of several shards of which the index
// chooses none are in TensorReader::unread, not errors.
std::unique_ptr<TensorReader> OpenSafetensorsInPart(const std::filesystem::path& path);

// True when a directory holds a model: config.json, and model.safetensors or its index.
bool HoldsModel(const std::filesystem::path& directory);

}  // namespace qlora

#endif  // QLORA_IO_SAFETENSORS_H_
