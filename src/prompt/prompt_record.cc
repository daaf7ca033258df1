#include "prompt/prompt_record.h"

#include "base/file.h"
#include "io/json.h"

namespace qlora {

namespace {

constexpr const char* kLayout = "prompt_layout";

}  // namespace

void AddPromptRecord(const PromptRecord& record, Json& json) {
  json["chat_template_kwargs"] = record.chat_template_kwargs;
  json["chat_template_date"] = record.chat_template_date;
  if (record.layout) json[kLayout] = LayoutToJson(*record.layout);
}

PromptRecord PromptRecordOf(const Json& json, const std::string& where) {
  PromptRecord record;
  record.chat_template_kwargs = JsonGetOr<std::string>(json, "chat_template_kwargs", "", where);
  record.chat_template_date = JsonGetOr<std::string>(json, "chat_template_date", "", where);
  if (const Json* layout = FindJson(json, kLayout, where)) {
    record.layout = LayoutFromJson(OrderedJson(*layout), where);
  }
  return record;
}

void SavePromptRecord(const std::filesystem::path& model_dir, const PromptRecord& record) {
  Json json = Json::object();
  AddPromptRecord(record, json);
  // This file is written where an adapter is merged.
  json["merged_weights"] = true;
  WriteTextFile(model_dir / kPromptRecord, FormatJson(json, 2) + "\n");
}

std::optional<PromptRecord> LoadPromptRecord(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / kPromptRecord;
  if (!std::filesystem::exists(path)) return {};
  return PromptRecordOf(ReadJsonFile(path), path.string());
}

}  // namespace qlora
