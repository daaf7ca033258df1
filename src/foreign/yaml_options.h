// Options from values of YAML.
#ifndef QLORA_FOREIGN_YAML_OPTIONS_H_
#define QLORA_FOREIGN_YAML_OPTIONS_H_

#include <yaml-cpp/yaml.h>

#include <string>

#include "qlora/options.h"

namespace qlora {

// Sets an option from a scalar, a list of scalars, or a map where it TakesPairs or TakesJson.
// Errors: as OptionTable::Set.
void SetFromNode(OptionTable& table, const std::string& key, const YAML::Node& value,
                 const std::string& origin);

// True when the text is JSON, which may be written as a map.
bool TakesJson(const Option& option);
// True when this list may be a map, {down_proj: 8} for down_proj=8.
bool TakesPairs(const Option& option);

}  // namespace qlora

#endif  // QLORA_FOREIGN_YAML_OPTIONS_H_
