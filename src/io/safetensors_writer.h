// Writes safetensors files and sharded checkpoints.
#ifndef QLORA_IO_SAFETENSORS_WRITER_H_
#define QLORA_IO_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "io/tensor_file.h"

namespace qlora {

// Takes bytes in the declared order. In the file the tensors have the order of the format's
// reference writer, wide types first and then by name (upper_bound tensors at the end), so that
// each is aligned to its type. Adds "format": "pt" to the metadata, which transformers requires.
// Errors: InvalidInput for a tensor that the format cannot hold.
std::unique_ptr<TensorWriter> CreateSafetensors(const std::filesystem::path& path,
                                                std::vector<TensorInfo> tensors,
                                                const StringMap& metadata);

inline constexpr std::uint64_t kMaxShardBytes = std::uint64_t{5} << 30;

// Creates a checkpoint in `directory` (made when missing): model.safetensors when all tensors fit
// into max_shard_bytes, otherwise model-0000k-of-0000n.safetensors and
// model.safetensors.index.json. Tensors whose names agree up to ".weight" (the pieces of one
// quantized weight) share a shard. Errors: InvalidInput when the directory holds a checkpoint of
// the other layout, because readers would mix up the two.
std::unique_ptr<TensorWriter> CreateShardedSafetensors(const std::filesystem::path& directory,
                                                       std::vector<TensorInfo> tensors,
                                                       const StringMap& metadata,
                                                       std::uint64_t max_shard_bytes);

}  // namespace qlora

#endif  // QLORA_IO_SAFETENSORS_WRITER_H_
