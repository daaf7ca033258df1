// Axolotl's layouts of prompts that are not conversations, as templates of fields.
#ifndef QLORA_FOREIGN_AXOLOTL_LAYOUT_H_
#define QLORA_FOREIGN_AXOLOTL_LAYOUT_H_

#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>
#include <string_view>

namespace qlora {

// Values of prompt_template and completion_template (prompt/field_template.h).
struct FieldTemplates {
  std::string prompt;
  std::string completion;
};

// The texts of a type that Axolotl has by name, such as alpaca_chat.load_qa; nothing for others.
std::optional<FieldTemplates> AxolotlLayout(std::string_view type);

// The texts of a type that is a map of format, no_input_format, field_instruction and the like;
// nothing where templates cannot say exactly the same.
std::optional<FieldTemplates> AxolotlLayout(const YAML::Node& map);

}  // namespace qlora

#endif  // QLORA_FOREIGN_AXOLOTL_LAYOUT_H_
