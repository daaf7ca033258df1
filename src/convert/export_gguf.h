// GGUF files for llama.cpp: a whole model, or an adapter alone.
#ifndef QLORA_CONVERT_EXPORT_GGUF_H_
#define QLORA_CONVERT_EXPORT_GGUF_H_

#include <string>
#include <vector>

#include "convert/export_target.h"
#include "model/config.h"
#include "model/lora.h"
#include "model/weights.h"
#include "qlora/context.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Errors: InvalidInput for a word that names no type of tensors in GGUF.
TensorType ParseOuttype(const std::string& name);

// Writes weights, with the adapter (may be null) merged in. memory: of weights and adapter. name:
// of the model, for `general.name`.
// notes: receives what the file lacks or has otherwise, for the user. Errors: InvalidInput for a
// model that llama.cpp would compute otherwise, naming the setting.
// Rows that Q8_0 does not divide stay F16, norms and biases F32, as llama.cpp expects them.
void ExportGgufModel(Context& context, Memory& memory, const DecoderConfig& config,
                     const Tokenizer& tokenizer, const DecoderWeights& weights,
                     const LoraAdapter* adapter, const std::string& name,
                     const ExportTarget& target, const ProgressFn& progress,
                     std::vector<std::string>& notes);

// Writes the adapter. All scaling is folded in, so that llama.cpp's alpha / rank gives the trained
// scale, with rsLoRA and with ranks and alphas that differ. name, repository: of the base;
// repository is org/name, or "" where it is not known.
void ExportGgufAdapter(const DecoderConfig& config, const LoraAdapter& adapter,
                       const std::string& name, const std::string& repository,
                       const ExportTarget& target);

}  // namespace qlora

#endif  // QLORA_CONVERT_EXPORT_GGUF_H_
