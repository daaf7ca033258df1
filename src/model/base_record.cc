#include "model/base_record.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "base/file.h"
#include "gguf/gguf.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "io/peft/adapter_source.h"
#include "model/quantization.h"
#include "prompt/prompt_record.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

// The blocks of a file are used as they are, so that no option gives them another form.
void AdoptBlocks(BaseRecord& base) {
  const QuantizationFields defaults;
  // gpt-oss is published in MXFP4.
  const bool has_original = std::ranges::count(base.block_formats, "MXFP4") == 0;
  const auto check = [&](const char* key, auto field) {
    if (base.quantization.*field == defaults.*field) return;
    ThrowInvalidInput(
        "{} {} would have no effect: {} holds its linears in blocks of {}, which are used as they "
        "are; leave the option out{}",
        key, base.quantization.*field, base.model_name_or_path, fmt::join(base.block_formats, ", "),
        has_original ? ", or give the 16-bit checkpoint" : "");
  };
  // Without load_in_4bit these options have no effect on any checkpoint.
  if (base.load_in_4bit) {
    check("bnb_4bit_quant_type", &QuantizationFields::bnb_4bit_quant_type);
    check("bnb_4bit_use_double_quant", &QuantizationFields::bnb_4bit_use_double_quant);
    check("bnb_4bit_blocksize", &QuantizationFields::bnb_4bit_blocksize);
    check("scale_search", &QuantizationFields::scale_search);
  }
  base.load_in_4bit = false;
  base.quantization = defaults;
}

}  // namespace

LoadOptions LoadOptionsOf(const BaseRecord& base) {
  LoadOptions load;
  load.load_in_4bit = base.load_in_4bit;
  load.quantize = ParseQuantizeOptions(base.quantization);
  return load;
}

// Takes over the form in which the checkpoint stores its linears. An option at its default is not
// a request for a form, so only a value that differs from the default is compared.
void AdoptStoredForm(BaseRecord& base, const WeightSizes& sizes) {
  base.block_formats = sizes.block_formats;
  if (!base.block_formats.empty()) return AdoptBlocks(base);
  if (!sizes.stored_4bit) return;
  if (!base.load_in_4bit) {
    ThrowInvalidInput(
        "{} holds its linears in 4 bits, which load_in_4bit false cannot undo; give the 16-bit "
        "checkpoint that it was made from",
        base.model_name_or_path);
  }
  const QuantizationFields defaults;
  const QuantizationFields& stored = *sizes.stored_4bit;
  const QuantizationFields& asked = base.quantization;
  const auto check = [&](const char* key, auto field) {
    if (asked.*field == stored.*field || asked.*field == defaults.*field) return;
    ThrowInvalidInput(
        "{} {}: {} is stored in 4 bits already, with {} {}; leave the option "
        "out, or give the 16-bit checkpoint",
        key, asked.*field, base.model_name_or_path, key, stored.*field);
  };
  check("bnb_4bit_quant_type", &QuantizationFields::bnb_4bit_quant_type);
  check("bnb_4bit_use_double_quant", &QuantizationFields::bnb_4bit_use_double_quant);
  check("bnb_4bit_blocksize", &QuantizationFields::bnb_4bit_blocksize);
  check("scale_search", &QuantizationFields::scale_search);
  base.quantization = stored;
}

std::string NoteIdle4bit(const WeightSizes& sizes) {
  return fmt::format(
      "load_in_4bit has no effect: the linears are used as the file holds them, in blocks of {}",
      fmt::join(sizes.block_formats, ", "));
}

std::string NoteIdleInt8(const Precision& precision, const WeightSizes& sizes) {
  if (precision.frozen == FrozenProducts::kFloat || sizes.quantized.any()) return "";
  return "compute_dtype int8 has no effect: no weight is quantized, so products are in bfloat16; "
         "leave it out, or quantize (load_in_4bit true)";
}

// qlora_base.json has the fields of BaseRecord under the names of the options. The template is a
// separate file, which other programs read as well.
void SaveBaseRecord(const std::filesystem::path& adapter_dir, const BaseRecord& base) {
  Json json = {
      {"model_name_or_path", base.model_name_or_path},
      {"load_in_4bit", base.load_in_4bit},
      {"bnb_4bit_quant_type", base.quantization.bnb_4bit_quant_type},
      {"bnb_4bit_use_double_quant", base.quantization.bnb_4bit_use_double_quant},
      {"bnb_4bit_blocksize", base.quantization.bnb_4bit_blocksize},
      {"scale_search", base.quantization.scale_search},
  };
  if (!base.model_fingerprint.empty()) json["model_fingerprint"] = base.model_fingerprint;
  if (!base.block_formats.empty()) json["block_formats"] = base.block_formats;
  AddPromptRecord(base.prompts, json);
  WriteTextFile(adapter_dir / kBaseRecord, FormatJson(json, 2) + "\n");
  if (!base.chat_template.empty()) {
    WriteTextFile(adapter_dir / kChatTemplateFile, base.chat_template);
  }
}

// The prompts are newer than the other keys: adapters of earlier versions do not have them.
std::optional<BaseRecord> LoadBaseRecord(const std::filesystem::path& adapter_dir) {
  const std::filesystem::path path = adapter_dir / kBaseRecord;
  if (!std::filesystem::exists(path)) return {};
  const Json json = ReadJsonFile(path);
  const std::string where = path.string();
  BaseRecord base;
  base.model_name_or_path = JsonGet<std::string>(json, "model_name_or_path", where);
  base.load_in_4bit = JsonGet<bool>(json, "load_in_4bit", where);
  base.quantization.bnb_4bit_quant_type = JsonGet<std::string>(json, "bnb_4bit_quant_type", where);
  base.quantization.bnb_4bit_use_double_quant =
      JsonGet<bool>(json, "bnb_4bit_use_double_quant", where);
  base.quantization.bnb_4bit_blocksize = JsonGet<std::int64_t>(json, "bnb_4bit_blocksize", where);
  base.quantization.scale_search = JsonGet<bool>(json, "scale_search", where);
  base.model_fingerprint = JsonGetOr<std::string>(json, "model_fingerprint", "", where);
  base.block_formats = JsonGetOr<std::vector<std::string>>(json, "block_formats", {}, where);
  base.prompts = PromptRecordOf(json, where);
  return base;
}

std::string TrainedFingerprint(const std::filesystem::path& adapter) {
  if (FormatOfAdapter(adapter) == AdapterFormat::kGguf) {
    const GgufMetadata metadata = ReadGgufMetadata(adapter);
    const GgufValue* recorded = metadata.Find(kBaseFingerprintKey);
    const auto* value = recorded == nullptr ? nullptr : std::get_if<std::string>(recorded);
    return value == nullptr ? "" : *value;
  }
  const std::filesystem::path file = adapter / kBaseRecord;
  if (!std::filesystem::exists(file)) return "";
  return JsonGetOr<std::string>(ReadJsonFile(file), "model_fingerprint", "", file.string());
}

std::optional<PromptLayout> LoadLayout(const std::filesystem::path& adapter_dir) {
  if (adapter_dir.empty()) return {};
  const std::optional<BaseRecord> base = LoadBaseRecord(adapter_dir);
  return base ? base->prompts.layout : std::nullopt;
}

std::filesystem::path ChatTemplateDir(const std::filesystem::path& adapter_dir) {
  const std::optional<PromptLayout> layout = LoadLayout(adapter_dir);
  // For these two layouts chat_template.jinja was written to show other programs a layout of plain
  // text; it does not render conversations.
  const bool shows_text = layout && (layout->kind == PromptLayout::Kind::kText ||
                                     layout->kind == PromptLayout::Kind::kWhole);
  return shows_text ? std::filesystem::path() : adapter_dir;
}

bool HoldsMergedWeights(const std::filesystem::path& model_dir) {
  if (const auto gguf = FindGguf(model_dir)) {
    const GgufMetadata metadata = ReadGgufMetadata(*gguf);
    const GgufValue* merged = metadata.Find(kMergedWeightsKey);
    const auto* value = merged == nullptr ? nullptr : std::get_if<bool>(merged);
    return value != nullptr && *value;
  }
  const std::filesystem::path path = model_dir / kPromptRecord;
  if (!std::filesystem::exists(path)) return false;
  return JsonGetOr<bool>(ReadJsonFile(path), "merged_weights", false, path.string());
}

}  // namespace qlora
