// Where a model is a GGUF file, by names alone; gguf/ reads it.
#ifndef QLORA_IO_GGUF_PATH_H_
#define QLORA_IO_GGUF_PATH_H_

#include <filesystem>
#include <optional>

namespace qlora {

// Returns `path` itself if it is a file NAME.gguf, or the GGUF model in a folder that has no
// config.json: its only file of that kind, or the first of its parts. Files of image encoders
// (mmproj) and importance matrices (imatrix) do not count. Nothing for other paths. Errors:
// InvalidInput for a folder of several models, naming them.
std::optional<std::filesystem::path> FindGguf(const std::filesystem::path& path);

}  // namespace qlora

#endif  // QLORA_IO_GGUF_PATH_H_
