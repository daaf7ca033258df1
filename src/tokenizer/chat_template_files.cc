#include "tokenizer/chat_template_files.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "io/foreign_content.h"
#include "tokenizer/json_value.h"
#include "tokenizer/optional_file.h"

namespace qlora {
namespace {

// True where the adapter's chat_template.jinja was written to show other programs a layout of plain
// text (model/base_record.h records it); it does not render conversations.
bool ShowsText(const std::filesystem::path& adapter_dir) {
  const OptionalFile record(adapter_dir / "qlora_base.json");
  if (!record.Root().Has("prompt_layout")) return false;
  const JsonValue kind = record.Root()["prompt_layout"]["kind"];
  return !kind.IsNull() && (kind.String() == "text" || kind.String() == "whole");
}

// The templates of a tokenizer_config.json.
void AddConfigTemplates(const std::filesystem::path& path,
                        std::vector<ChatTemplateText>* templates) {
  const OptionalFile config(path);
  const JsonValue value = config.Root()["chat_template"];
  if (value.IsArray()) {
    for (const JsonValue& item : value.Array()) {
      templates->push_back({item["name"].String(), item["template"].String()});
    }
  } else if (!value.IsNull()) {
    templates->push_back({"default", value.String()});
  }
}

// In order of precedence; a name may come several times.
std::vector<ChatTemplateText> ModelTemplates(const std::filesystem::path& model_dir) {
  std::vector<ChatTemplateText> templates;
  if (const auto file = model_dir / kChatTemplateFile; std::filesystem::exists(file)) {
    templates.push_back({"default", ReadOwnText(file)});
  }
  const std::filesystem::path folder = model_dir / "additional_chat_templates";
  if (std::filesystem::is_directory(folder)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".jinja") files.push_back(entry.path());
    }
    // Directories list files in no order; the list of templates must not depend on the file system.
    std::sort(files.begin(), files.end());
    for (const auto& path : files) templates.push_back({path.stem().string(), ReadOwnText(path)});
  }
  AddConfigTemplates(model_dir / "tokenizer_config.json", &templates);
  return templates;
}

}  // namespace

std::vector<ChatTemplateText> ReadChatTemplates(const std::filesystem::path& model_dir,
                                                const std::filesystem::path& adapter,
                                                TemplateUse use) {
  return WithAdapterTemplates(ModelTemplates(model_dir), adapter, use);
}

std::vector<ChatTemplateText> WithAdapterTemplates(std::vector<ChatTemplateText> of_model,
                                                   const std::filesystem::path& adapter,
                                                   TemplateUse use) {
  std::vector<ChatTemplateText> in_order;
  bool from_adapter = false;
  if (!adapter.empty() && (use == TemplateUse::kShow || !ShowsText(adapter))) {
    const std::filesystem::path file = adapter / kChatTemplateFile;
    if (std::filesystem::exists(file)) in_order.push_back({"default", ReadOwnText(file)});
    // Before transformers 4.52, trainers saved the template in tokenizer_config.json alone.
    const std::filesystem::path config = adapter / "tokenizer_config.json";
    const bool own =
        std::filesystem::exists(config) && OptionalFile(config).Root().Has("chat_template");
    from_adapter = own || !in_order.empty();
    if (own) AddConfigTemplates(config, &in_order);
  }
  std::move(of_model.begin(), of_model.end(), std::back_inserter(in_order));
  // The first template of a name counts.
  std::vector<ChatTemplateText> templates;
  std::set<std::string> names;
  for (ChatTemplateText& added : in_order) {
    // The template of an adapter serves conversations with tools too.
    if (from_adapter && added.name == kToolTemplate) continue;
    if (!names.insert(added.name).second) continue;
    templates.push_back(std::move(added));
  }
  std::stable_partition(templates.begin(), templates.end(),
                        [](const ChatTemplateText& t) { return t.name == "default"; });
  return templates;
}

}  // namespace qlora
