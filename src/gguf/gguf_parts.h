// A model in several GGUF files, as llama.cpp splits them: NAME-00001-of-00003.gguf and so on. Each
// has the keys split.no (from 0) and split.count, its own tensors and their entries; the first has
// all other keys, and may have no tensors.
#ifndef QLORA_GGUF_GGUF_PARTS_H_
#define QLORA_GGUF_GGUF_PARTS_H_

#include <cstddef>
#include <filesystem>
#include <vector>

#include "gguf/gguf.h"

namespace qlora {

struct GgufParts {
  std::vector<std::filesystem::path> files;  // in their order; one where the model is not split
};

// Finds the files of a model by the name of any of them. Errors: InvalidInput naming a part that is
// missing.
GgufParts FindGgufParts(const std::filesystem::path& path);

// Checks what file number `part` says of itself. Errors: InvalidInput.
void CheckGgufPart(const GgufParts& parts, std::size_t part, const GgufMetadata& values);

// Checks the number of tensors of all files. Errors: InvalidInput.
void CheckGgufTensors(const GgufParts& parts, const GgufMetadata& first, std::size_t tensors);

}  // namespace qlora

#endif  // QLORA_GGUF_GGUF_PARTS_H_
