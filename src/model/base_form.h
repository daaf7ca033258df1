// In which form the base model was held while an adapter was trained, and which chat template
// wrote its data. Kept beside the adapter in qlora_base.json and chat_template.jinja, so that the
// same function is computed later without being told.
#ifndef QLORA_MODEL_BASE_FORM_H_
#define QLORA_MODEL_BASE_FORM_H_

#include <filesystem>
#include <optional>
#include <string>

#include "model/weights.h"
#include "qlora/quantization.h"

namespace qlora {

struct BaseForm {
  std::string model_name_or_path;
  bool load_in_4bit = true;
  QuantizationFields quantization;
  std::string chat_template = {};  // Jinja, when not that of the base; LoadBaseForm leaves it empty
  std::string chat_template_kwargs = {};  // a JSON object of variables for it, or nothing
};

// Makes the form what the weights were loaded in. Errors: InvalidInput when a 4-bit checkpoint is
// of another form than was asked for.
void AdoptStoredForm(BaseForm& form, const WeightSizes& sizes);

void SaveBaseForm(const std::filesystem::path& adapter_dir, const BaseForm& form);
// Nothing when the adapter was not trained by this program.
std::optional<BaseForm> LoadBaseForm(const std::filesystem::path& adapter_dir);

}  // namespace qlora

#endif  // QLORA_MODEL_BASE_FORM_H_
