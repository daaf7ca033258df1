// Models as GGUF files for llama.cpp.
#ifndef QLORA_EXPORT_GGUF_EXPORT_GGUF_H_
#define QLORA_EXPORT_GGUF_EXPORT_GGUF_H_

#include <filesystem>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "config/config.h"
#include "export/export_target.h"
#include "export/gguf/gguf_mix.h"
#include "export/gguf/gguf_plan.h"
#include "export/gguf/imatrix.h"
#include "inference/decision_source.h"
#include "model/weights.h"
#include "qlora/context.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Errors: InvalidInput for a word that names no type of GGUF files.
const GgufFileType& ParseOuttype(const std::string& name);

// What a file for llama.cpp is made from.
struct GgufModelSource {
  const DecoderConfig& config;
  const Tokenizer& tokenizer;
  const DecoderWeights& weights;
  const LoraAdapter* adapter;    // merged in; or null
  bool merged_before;            // the model holds an adapter already
  std::string name;              // of the model, for general.name
  std::string repository;        // org/name of the model, or ""
  std::filesystem::path folder;  // or GGUF file of the model, for its license
  const GgufFileType& file;      // decides the type of each matrix; norms and biases are F32
  const ImportanceMatrix* importance = nullptr;  // for the rounding to blocks; or null
  std::string importance_file = {};              // its name
  GgufPlan::Check check = {};                    // of what rounding leaves of the adapter
  const DecisionSource* decision = nullptr;      // for a model that decides; or null
  const GgufReader* stored = nullptr;  // the GGUF file that the model is read from; or null
  bool keeps_types = false;            // of the stored tensors, in place of those of `file`
};

// Writes a model. memory: of weights and adapter. notes: receives what the file lacks or has
// otherwise, for the user. Returns the type of the fewest bits to which values are rounded; F32
// where all are copied. Errors: InvalidInput for a model that llama.cpp would compute otherwise,
// naming the setting, and for an importance matrix of another model.
TensorType ExportGgufModel(Context& context, Memory& memory, const GgufModelSource& model,
                           const ExportTarget& target, const ProgressFn& progress,
                           std::vector<std::string>& notes);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_EXPORT_GGUF_H_
