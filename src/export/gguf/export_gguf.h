// Models as GGUF files for llama.cpp.
#ifndef QLORA_EXPORT_GGUF_EXPORT_GGUF_H_
#define QLORA_EXPORT_GGUF_EXPORT_GGUF_H_

#include <string>
#include <vector>

#include "base/memory.h"
#include "export/export_target.h"
#include "export/gguf/gguf_mix.h"
#include "export/gguf/gguf_model_source.h"
#include "qlora/context.h"

namespace qlora {

// Errors: InvalidInput for a word that names no type of GGUF files.
const GgufFileType& ParseOuttype(const std::string& name);

// Writes a model. memory: of weights and adapter. notes: receives what the file lacks or has
// otherwise, for the user. Returns the type of the fewest bits to which values are rounded; F32
// where all are copied. Errors: InvalidInput for a model that llama.cpp would compute otherwise,
// naming the setting, and for an importance matrix of another model.
TensorType ExportGgufModel(Context& context, Memory& memory, const GgufModelSource& model,
                           const ExportTarget& target, const ProgressFn& progress,
                           std::vector<std::string>& notes);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_EXPORT_GGUF_H_
