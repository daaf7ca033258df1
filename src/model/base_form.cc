#include "model/base_form.h"

#include "base/file.h"
#include "io/json.h"
#include "model/setup.h"

namespace qlora {
namespace {

constexpr const char* kFileName = "qlora_base.json";

}  // namespace

QuantizeOptions BaseForm::ToQuantizeOptions() const {
  QuantizeOptions options = ParseQuantizeOptions(quant_type, double_quant, block_size);
  options.scale_search = scale_search;
  return options;
}

void SaveBaseForm(const std::filesystem::path& adapter_dir, const BaseForm& form) {
  const Json json = {
      {"model_name_or_path", form.model_name_or_path},
      {"load_in_4bit", form.load_in_4bit},
      {"bnb_4bit_quant_type", form.quant_type},
      {"bnb_4bit_use_double_quant", form.double_quant},
      {"bnb_4bit_blocksize", form.block_size},
      {"scale_search", form.scale_search},
  };
  WriteTextFile(adapter_dir / kFileName, json.dump(2) + "\n");
}

std::optional<BaseForm> LoadBaseForm(const std::filesystem::path& adapter_dir) {
  const std::filesystem::path path = adapter_dir / kFileName;
  if (!std::filesystem::exists(path)) return {};
  const Json json = ReadJsonFile(path);
  const std::string where = path.string();
  BaseForm form;
  form.model_name_or_path = JsonGet<std::string>(json, "model_name_or_path", where);
  form.load_in_4bit = JsonGet<bool>(json, "load_in_4bit", where);
  form.quant_type = JsonGet<std::string>(json, "bnb_4bit_quant_type", where);
  form.double_quant = JsonGet<bool>(json, "bnb_4bit_use_double_quant", where);
  form.block_size = JsonGet<std::int64_t>(json, "bnb_4bit_blocksize", where);
  form.scale_search = JsonGet<bool>(json, "scale_search", where);
  return form;
}

}  // namespace qlora
