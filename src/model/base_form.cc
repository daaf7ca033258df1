#include "model/base_form.h"

#include "base/file.h"
#include "io/json.h"
#include "text/tokenizer_config.h"

namespace qlora {
namespace {

constexpr const char* kFileName = "qlora_base.json";

}  // namespace

void SaveBaseForm(const std::filesystem::path& adapter_dir, const BaseForm& form) {
  const Json json = {
      {"model_name_or_path", form.model_name_or_path},
      {"load_in_4bit", form.load_in_4bit},
      {"bnb_4bit_quant_type", form.quantization.bnb_4bit_quant_type},
      {"bnb_4bit_use_double_quant", form.quantization.bnb_4bit_use_double_quant},
      {"bnb_4bit_blocksize", form.quantization.bnb_4bit_blocksize},
      {"scale_search", form.quantization.scale_search},
  };
  WriteTextFile(adapter_dir / kFileName, json.dump(2) + "\n");
  if (!form.chat_template.empty()) {
    WriteTextFile(adapter_dir / kChatTemplateFile, form.chat_template);
  }
}

std::optional<BaseForm> LoadBaseForm(const std::filesystem::path& adapter_dir) {
  const std::filesystem::path path = adapter_dir / kFileName;
  if (!std::filesystem::exists(path)) return {};
  const Json json = ReadJsonFile(path);
  const std::string where = path.string();
  BaseForm form;
  form.model_name_or_path = JsonGet<std::string>(json, "model_name_or_path", where);
  form.load_in_4bit = JsonGet<bool>(json, "load_in_4bit", where);
  form.quantization.bnb_4bit_quant_type = JsonGet<std::string>(json, "bnb_4bit_quant_type", where);
  form.quantization.bnb_4bit_use_double_quant =
      JsonGet<bool>(json, "bnb_4bit_use_double_quant", where);
  form.quantization.bnb_4bit_blocksize = JsonGet<std::int64_t>(json, "bnb_4bit_blocksize", where);
  form.quantization.scale_search = JsonGet<bool>(json, "scale_search", where);
  return form;
}

}  // namespace qlora
