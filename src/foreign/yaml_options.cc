#include "foreign/yaml_options.h"

#include <vector>

#include "base/check.h"
#include "foreign/yaml_text.h"

namespace qlora {

void SetFromNode(OptionTable& table, const std::string& key, const YAML::Node& value,
                 const std::string& origin) {
  if (value.IsScalar()) return table.Set(key, value.Scalar(), origin);
  std::vector<std::string> items;
  if (value.IsMap()) {
    const Option* option = table.Find(key);
    if (option != nullptr && TakesJson(*option)) {
      return table.Set(key, JsonText(value), origin);
    }
    if (option == nullptr || !TakesPairs(*option)) {
      ThrowInvalidInput("{}: '{}' holds a map, expected a value or a list; keys are not nested",
                        origin, key);
    }
    for (const auto& entry : value) {
      if (!entry.first.IsScalar() || !entry.second.IsScalar()) {
        ThrowInvalidInput("{}: {} maps names to plain values", origin, key);
      }
      items.push_back(entry.first.Scalar() + "=" + entry.second.Scalar());
    }
    return table.Set(key, items, origin);
  }
  for (const YAML::Node& item : value) {
    if (!item.IsScalar()) ThrowInvalidInput("{}: a list of plain values is expected", origin);
    items.push_back(item.Scalar());
  }
  table.Set(key, items, origin);
}

bool TakesJson(const Option& option) { return option.name == "chat_template_kwargs"; }

bool TakesPairs(const Option& option) {
  return option.name == "rank_pattern" || option.name == "alpha_pattern";
}

}  // namespace qlora
