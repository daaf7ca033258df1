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

struct BaseRecord {
  std::string model_name_or_path;
  bool load_in_4bit = true;
  QuantizationFields quantization;
  // Jinja, when other programs must not use the template of the base; LoadBaseRecord leaves it
  // empty.
  std::string chat_template = {};
  PromptRecord prompts = {};
};

// How weights are loaded for a base of this form. Errors: InvalidInput for a quantization that does
// not exist.
LoadOptions LoadOptionsOf(const BaseRecord& form);

// Makes the record say how the weights were loaded. Errors: InvalidInput when a 4-bit checkpoint is
// of another form than was asked for.
void AdoptStoredForm(BaseRecord& form, const WeightSizes& sizes);

void SaveBaseRecord(const std::filesystem::path& adapter_dir, const BaseRecord& form);
// Nothing when the adapter was not trained by this program.
std::optional<BaseRecord> LoadBaseRecord(const std::filesystem::path& adapter_dir);

// The layout that the adapter was trained in; nothing without an adapter (""), or when it records
// none.
std::optional<PromptLayout> LoadLayout(const std::filesystem::path& adapter_dir);

// The folder whose chat_template.jinja renders conversations: the adapter's, or none ("") when that
// file only shows other programs a layout that is not chat.
std::filesystem::path ChatTemplateDir(const std::filesystem::path& adapter_dir);

}  // namespace qlora

#endif  // QLORA_MODEL_BASE_RECORD_H_
