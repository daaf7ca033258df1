// The form in which the base model was held while an adapter was trained, the prompts of its data
// and their chat template. Kept with the adapter in qlora_base.json and chat_template.jinja, so
// that the same function of the same prompts is computed later without options.
#ifndef QLORA_MODEL_BASE_RECORD_H_
#define QLORA_MODEL_BASE_RECORD_H_

#include <filesystem>
#include <optional>
#include <string>

#include "model/weights.h"
#include "prompt/prompt_layout.h"
#include "prompt/prompt_record.h"
#include "qlora/quantization.h"

namespace qlora {

// The file in the folder of an adapter.
inline constexpr const char* kBaseRecord = "qlora_base.json";

struct BaseRecord {
  std::string model_name_or_path;
  bool load_in_4bit = true;
  QuantizationFields quantization;
  // Jinja, when other programs must not use the template of the base; LoadBaseRecord leaves it
  // empty.
  std::string chat_template = {};
  PromptRecord prompts = {};
  // In 16 hexadecimal digits (model/model_fingerprint.h); "" in records of older versions.
  std::string model_fingerprint = {};
  // WeightSizes::block_formats of a GGUF file. load_in_4bit is then false: on the checkpoint that
  // the file was made from, the adapter runs on the weights of 16 bits.
  std::vector<std::string> block_formats = {};
};

// Returns how the weights of a base of this form are loaded. Errors: InvalidInput for a
// quantization that does not exist.
LoadOptions LoadOptionsOf(const BaseRecord& base);

// Records the form in which the weights were loaded. Errors: InvalidInput when a checkpoint that is
// quantized itself has another form than the record asked for.
void AdoptStoredForm(BaseRecord& base, const WeightSizes& sizes);

// Says that load_in_4bit, which was given, has no effect on a file in blocks.
std::string NoteIdle4bit(const WeightSizes& sizes);
// Says that no weight is multiplied in 8 bits, which was asked for; "" otherwise.
std::string NoteIdleInt8(const Precision& precision, const WeightSizes& sizes);

void SaveBaseRecord(const std::filesystem::path& adapter_dir, const BaseRecord& base);
// Returns nothing when another program trained the adapter.
std::optional<BaseRecord> LoadBaseRecord(const std::filesystem::path& adapter_dir);

// The fingerprint of the weights that an adapter, a folder or a GGUF file, was trained on; "" where
// none is recorded. The key of GGUF files is of this program; llama.cpp ignores it.
inline constexpr const char* kBaseFingerprintKey = "qlora.base_fingerprint";
std::string TrainedFingerprint(const std::filesystem::path& adapter);

// Returns the layout that the adapter was trained in, or nothing without an adapter ("") or without
// a record of the layout.
std::optional<PromptLayout> LoadLayout(const std::filesystem::path& adapter_dir);

// Returns the folder whose chat_template.jinja renders conversations: the adapter's folder, or ""
// when that file only shows other programs a layout that is not chat.
std::filesystem::path ChatTemplateDir(const std::filesystem::path& adapter_dir);

// The key of GGUF files for what HoldsMergedWeights returns; llama.cpp ignores it.
inline constexpr const char* kMergedWeightsKey = "qlora.merged_weights";

// True for a checkpoint or a GGUF file that an adapter was merged into, whose weights are best used
// as they are: quantized again they would lose what was trained.
bool HoldsMergedWeights(const std::filesystem::path& model_dir);

}  // namespace qlora

#endif  // QLORA_MODEL_BASE_RECORD_H_
