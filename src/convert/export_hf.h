// A 16- or 32-bit Hugging Face checkpoint, with the adapter merged in.
#ifndef QLORA_CONVERT_EXPORT_HF_H_
#define QLORA_CONVERT_EXPORT_HF_H_

#include <filesystem>
#include <string>
#include <vector>

#include "model/lora.h"
#include "model/weights.h"
#include "qlora/convert.h"

namespace qlora {

// Writes output_dir: safetensors in shards of at most 5 GB, config.json without a quantization, and
// the other files of model_dir (tokenizer, templates ...). The folder appears whole or not at all.
// memory: that of weights and adapter. chat_template: Jinja text that takes the place of the
// model's; "" for none. Returns the files.
std::vector<std::string> ExportHf(Context& context, Memory& memory,
                                  const std::filesystem::path& model_dir,
                                  const DecoderWeights& weights, const LoraAdapter* adapter,
                                  DType outtype, const std::filesystem::path& output_dir,
                                  const std::string& chat_template, const ProgressFn& progress);

}  // namespace qlora

#endif  // QLORA_CONVERT_EXPORT_HF_H_
