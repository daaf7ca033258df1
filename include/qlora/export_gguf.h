// 4-bit matrices as tensors of a GGUF file.
#ifndef QLORA_EXPORT_GGUF_H_
#define QLORA_EXPORT_GGUF_H_

#include <filesystem>
#include <span>
#include <string>

#include "qlora/nf4_compat.h"

namespace qlora {

// A 4-bit matrix and its name in a file.
struct NamedMatrix {
  std::string name;
  compat::Matrix matrix;
};

// Writes matrices, decoded, to one GGUF file without a model's keys, for programs that read tensors
// by name; `Export` writes models. outtype: as in ExportOptions. A file at `path` is replaced.
// Errors: InvalidInput for names that GGUF cannot hold, values beyond outtype; Runtime.
void ExportGguf(std::span<const NamedMatrix> tensors, const std::filesystem::path& path,
                const std::string& outtype = "f16");

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_H_
