// In which form the base model was held while an adapter was trained. Kept beside the adapter in
// qlora_base.json, so that the same function is computed later without being told.
#ifndef QLORA_MODEL_BASE_FORM_H_
#define QLORA_MODEL_BASE_FORM_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "qlora/nf4.h"

namespace qlora {

struct BaseForm {
  std::string model_name_or_path;
  bool load_in_4bit = true;
  std::string quant_type = "nf4";
  bool double_quant = true;
  std::int64_t block_size = 64;
  bool scale_search = false;

  QuantizeOptions ToQuantizeOptions() const;  // InvalidInput for values that do not exist
};

void SaveBaseForm(const std::filesystem::path& adapter_dir, const BaseForm& form);
// Nothing when the adapter was not trained by this program.
std::optional<BaseForm> LoadBaseForm(const std::filesystem::path& adapter_dir);

}  // namespace qlora

#endif  // QLORA_MODEL_BASE_FORM_H_
