// What a model for llama.cpp is made from.
#ifndef QLORA_EXPORT_GGUF_GGUF_MODEL_SOURCE_H_
#define QLORA_EXPORT_GGUF_GGUF_MODEL_SOURCE_H_

#include <filesystem>
#include <string>

#include "adapter/lora.h"
#include "config/config.h"
#include "export/gguf/gguf_mix.h"
#include "export/gguf/gguf_plan.h"
#include "export/gguf/imatrix.h"
#include "inference/decision_source.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

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

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_MODEL_SOURCE_H_
