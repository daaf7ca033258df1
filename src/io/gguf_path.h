// Where a model is a GGUF file, by names and the first four bytes; gguf/ reads it.
#ifndef QLORA_IO_GGUF_PATH_H_
#define QLORA_IO_GGUF_PATH_H_

#include <filesystem>
#include <optional>

namespace qlora {

// True for a file that begins as GGUF files do.
bool HasGgufMagic(const std::filesystem::path& file);

// Returns `path` itself if it is a file NAME.gguf or one with the magic number, or the GGUF model
// in a folder that has no config.json: its only file of that kind, or the first of its parts. Files
// of image encoders (mmproj) and importance matrices (imatrix) do not count. Nothing for other
// paths. Errors: InvalidInput for a folder of several models, naming them.
std::optional<std::filesystem::path> FindGguf(const std::filesystem::path& path);

}  // namespace qlora

#endif  // QLORA_IO_GGUF_PATH_H_
