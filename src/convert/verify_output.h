// Reads what an export wrote as any model is read, and compares it with the source.
#ifndef QLORA_CONVERT_VERIFY_OUTPUT_H_
#define QLORA_CONVERT_VERIFY_OUTPUT_H_

#include <filesystem>
#include <string>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "io/peft/adapter_source.h"
#include "io/tensor_type.h"
#include "model/weights.h"
#include "qlora/export.h"

namespace qlora {

// The source of an export, and the written type of its weights.
struct VerifySource {
  Context& context;
  Backend& backend;  // computes in float32
  const ExportOptions& options;
  const AdapterSet& adapters;
  const std::filesystem::path& model_dir;
  const DecoderConfig& config;
  const DecoderWeights& weights;
  LoraAdapter* adapter;  // or null
  TensorType type;
  const std::string& text;
  bool prefix_space;  // false: the written tokenizer puts no space before texts, on purpose
  const ProgressFn& progress;
};

// Errors: Runtime for an output that cannot be read as a model.
VerifyReport VerifyOutput(const VerifySource& source);

}  // namespace qlora

#endif  // QLORA_CONVERT_VERIFY_OUTPUT_H_
