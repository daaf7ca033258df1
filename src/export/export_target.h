// The place of an export and the type that the values get in it.
#ifndef QLORA_EXPORT_EXPORT_TARGET_H_
#define QLORA_EXPORT_EXPORT_TARGET_H_

#include <filesystem>

#include "base/file.h"
#include "io/tensor_type.h"

namespace qlora {

struct ExportTarget {
  std::filesystem::path path;          // of a GGUF file, or of a Hugging Face folder
  OpenMode mode = OpenMode::kReplace;  // kCreate: a file that appears meanwhile is not replaced
  TensorType outtype = DType::kF16;  // of matrices and adapters; GgufModelSource has a mix instead
};

}  // namespace qlora

#endif  // QLORA_EXPORT_EXPORT_TARGET_H_
