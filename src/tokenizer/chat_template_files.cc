#include "tokenizer/chat_template_files.h"

#include <algorithm>
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

}  // namespace

std::vector<ChatTemplateText> ReadChatTemplates(const std::filesystem::path& model_dir,
                                                const std::filesystem::path& adapter,
                                                TemplateUse use) {
  std::vector<ChatTemplateText> templates;
  const bool has_own = !adapter.empty() && (use == TemplateUse::kShow || !ShowsText(adapter));
  const std::filesystem::path adapter_dir = has_own ? adapter : std::filesystem::path();
  const std::filesystem::path adapter_config = adapter_dir / "tokenizer_config.json";
  const bool own_config = has_own && std::filesystem::exists(adapter_config) &&
                          OptionalFile(adapter_config).Root().Has("chat_template");
  // The template of an adapter serves conversations with tools too.
  const bool from_adapter =
      own_config || (has_own && std::filesystem::exists(adapter_dir / kChatTemplateFile));
  // The first template of a name counts, so the places are read in order of precedence.
  const auto add = [&](const std::string& name, std::string text) {
    const bool known = std::any_of(templates.begin(), templates.end(),
                                   [&](const ChatTemplateText& t) { return t.name == name; });
    if (known || (from_adapter && name == kToolTemplate)) return;
    templates.push_back({name, std::move(text)});
  };
  const auto add_file = [&](const std::filesystem::path& dir) {
    const std::filesystem::path file = dir / kChatTemplateFile;
    if (!dir.empty() && std::filesystem::exists(file)) add("default", ReadOwnText(file));
  };
  const auto add_config = [&](const std::filesystem::path& path) {
    const OptionalFile config(path);
    const JsonValue value = config.Root()["chat_template"];
    if (value.IsArray()) {
      for (const JsonValue& item : value.Array()) {
        add(item["name"].String(), item["template"].String());
      }
    } else if (!value.IsNull()) {
      add("default", value.String());
    }
  };
  // Before transformers 4.52, trainers saved the template in tokenizer_config.json alone.
  add_file(adapter_dir);
  if (own_config) add_config(adapter_config);
  add_file(model_dir);
  const std::filesystem::path folder = model_dir / "additional_chat_templates";
  if (std::filesystem::is_directory(folder)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".jinja") files.push_back(entry.path());
    }
    // Directories list files in no order; the list of templates must not depend on the file system.
    std::sort(files.begin(), files.end());
    for (const auto& path : files) add(path.stem().string(), ReadOwnText(path));
  }
  add_config(model_dir / "tokenizer_config.json");
  std::stable_partition(templates.begin(), templates.end(),
                        [](const ChatTemplateText& t) { return t.name == "default"; });
  return templates;
}

}  // namespace qlora
