// Writes GGUF files.
#ifndef QLORA_GGUF_GGUF_WRITER_H_
#define QLORA_GGUF_GGUF_WRITER_H_

#include <filesystem>
#include <memory>
#include <vector>

#include "base/file.h"
#include "gguf/gguf.h"
#include "io/tensor_file.h"

namespace qlora {

// Takes the bytes of F32, F16, BF16 (and F64, I8..I64) tensors and of all blocks of ggml; shapes
// are HF's. Errors: InvalidInput for files that llama.cpp's reader refuses: names of 64 bytes and
// more, more than 4 dimensions, rows that are no whole number of blocks, repeated names or keys.
std::unique_ptr<TensorWriter> CreateGguf(const std::filesystem::path& path,
                                         const GgufMetadata& metadata,
                                         std::vector<TensorInfo> tensors,
                                         OpenMode mode = OpenMode::kReplace);

}  // namespace qlora

#endif  // QLORA_GGUF_GGUF_WRITER_H_
