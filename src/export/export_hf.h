// A 16- or 32-bit Hugging Face checkpoint, with the adapter merged in.
#ifndef QLORA_EXPORT_EXPORT_HF_H_
#define QLORA_EXPORT_EXPORT_HF_H_

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "config/config.h"
#include "decision/decision_file.h"
#include "export/export_target.h"
#include "inference/decision_source.h"
#include "io/json_fwd.h"
#include "model/weights.h"
#include "prompt/prompt_record.h"
#include "qlora/context.h"

namespace qlora {

// The parts of a merged adapter other than weights that the checkpoint takes.
struct MergedPrompts {
  std::string chat_template = {};             // Jinja, in the place of the model's; "": the model's
  std::optional<PromptRecord> record = {};    // in the place of the model's, also where nothing
  std::optional<DecisionFile> decision = {};  // likewise
  std::filesystem::path tokenizer_dir = {};   // files of a tokenizer in the place of the model's
};

// Finds them for a model in `model`, a folder or GGUF file, and an adapter ("": none). decision: of
// the output; may be null.
MergedPrompts FindPrompts(const std::filesystem::path& model, const std::filesystem::path& adapter,
                          const DecisionSource* decision);

// What a checkpoint is made from.
struct HfModelSource {
  std::filesystem::path folder;  // or GGUF file of the model
  const Json& config_json;       // CheckpointConfig of it
  const DecoderConfig& config;   // of the weights
  const DecoderWeights& weights;
  const LoraAdapter* adapter;  // merged in; or null
  MergedPrompts prompts = {};  // of the adapter, if there is one
};

// Writes the folder: safetensors in shards of at most 5 GB, config.json without a quantization, and
// the other files of the model (tokenizer, templates ...); of a GGUF file these are made. The
// folder appears whole or not at all. memory: of weights and adapter. notes: gets remarks about the
// output. Returns the files.
std::vector<std::string> ExportHf(Context& context, Memory& memory, const HfModelSource& model,
                                  const ExportTarget& target, const ProgressFn& progress,
                                  std::vector<std::string>& notes);

}  // namespace qlora

#endif  // QLORA_EXPORT_EXPORT_HF_H_
