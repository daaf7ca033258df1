// Where a model comes from, as keys of GGUF: its license, what it was made from, and who rounded
// it.
#ifndef QLORA_EXPORT_GGUF_GGUF_ORIGIN_H_
#define QLORA_EXPORT_GGUF_GGUF_ORIGIN_H_

#include <filesystem>
#include <string>

#include "export/gguf/gguf_mix.h"
#include "export/gguf/imatrix.h"
#include "gguf/gguf.h"

namespace qlora {

// Adds license, tags and languages of a model in a folder (README.md) or a GGUF file; with_bases:
// also the models that it was made from. An unreadable card has none.
void AddOrigin(const std::filesystem::path& model, bool with_bases, GgufMetadata& out);

// Names the one model that an adapter changes, as llama.cpp does for adapters. repository:
// "org/name", or "" where it is not known.
void AddBaseModel(const std::string& name, const std::string& repository, GgufMetadata& out);

// Adds who rounded the weights to blocks, and with which importance matrix (or null; file: its
// name).
void AddQuantizer(const GgufFileType& file, const ImportanceMatrix* importance,
                  const std::string& importance_file, GgufMetadata& out);

// What the keys of the matrix begin with, of which AddImportance adds all that are known. file: the
// name of the matrix.
inline constexpr const char* kImportanceKeys = "quantize.imatrix.";
void AddImportance(const ImportanceMatrix& importance, const std::string& file, GgufMetadata& out);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_ORIGIN_H_
