#include "tokenizer/chat_template_files.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/file.h"
#include "tokenizer/json_value.h"
#include "tokenizer/optional_file.h"

namespace qlora {
std::vector<ChatTemplateText> ReadChatTemplates(const std::filesystem::path& model_dir,
                                                const std::filesystem::path& adapter_dir) {
  std::vector<ChatTemplateText> templates;
  // The template of an adapter serves conversations with tools too.
  const bool from_adapter =
      !adapter_dir.empty() && std::filesystem::exists(adapter_dir / kChatTemplateFile);
  // The first template of a name counts, so the places are read in order of precedence.
  const auto add = [&](const std::string& name, std::string text) {
    const bool known = std::any_of(templates.begin(), templates.end(),
                                   [&](const ChatTemplateText& t) { return t.name == name; });
    if (known || (from_adapter && name == kToolTemplate)) return;
    templates.push_back({name, std::move(text)});
  };
  for (const std::filesystem::path& dir : {adapter_dir, model_dir}) {
    const std::filesystem::path file = dir / kChatTemplateFile;
    if (!dir.empty() && std::filesystem::exists(file)) add("default", ReadTextFile(file));
  }
  const std::filesystem::path folder = model_dir / "additional_chat_templates";
  if (std::filesystem::is_directory(folder)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".jinja") files.push_back(entry.path());
    }
    // Directories list files in no order; the list of templates must not depend on the file system.
    std::sort(files.begin(), files.end());
    for (const auto& path : files) add(path.stem().string(), ReadTextFile(path));
  }
  const OptionalFile config(model_dir / "tokenizer_config.json");
  const JsonValue value = config.Root()["chat_template"];
  if (value.IsArray()) {
    for (const JsonValue& item : value.Array()) {
      add(item["name"].String(), item["template"].String());
    }
  } else if (!value.IsNull()) {
    add("default", value.String());
  }
  std::stable_partition(templates.begin(), templates.end(),
                        [](const ChatTemplateText& t) { return t.name == "default"; });
  return templates;
}

}  // namespace qlora
