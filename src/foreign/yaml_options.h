// Options from values of YAML.
#ifndef QLORA_FOREIGN_YAML_OPTIONS_H_
#define QLORA_FOREIGN_YAML_OPTIONS_H_

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "qlora/options.h"

namespace qlora {

// Sets an option from a scalar, a list of scalars, or a map where it TakesPairs or TakesJson. The
// scalar of a list option is comma-separated, or a JSON list, whose items may have commas.
// Errors: as OptionTable::Set and ItemsOfJson.
void SetFromNode(OptionTable& table, const std::string& key, const YAML::Node& value,
                 const std::string& origin);

// The value that SetFromNode would give the option, which stays as it is.
using OptionValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;
OptionValue ValueFromNode(const Option& option, const YAML::Node& value, const std::string& origin);

// Returns the items of ["a, b", "c"] for a list, numbers and truth values as they are written
// (1.10, 1e5); nothing for other options, for a text that is no JSON list of plain values, and for
// a list of paths, where [1] is a name, unless an item is a text. Errors (InvalidInput): a text
// that begins with [" and ends with ] without being one.
std::optional<std::vector<std::string>> ItemsOfJson(const Option& option, std::string_view text,
                                                    std::string_view origin);

// True when the text is JSON, which may be written as a map.
bool TakesJson(const Option& option);
// True when this list may be a map, {down_proj: 8} for down_proj=8.
bool TakesPairs(const Option& option);

}  // namespace qlora

#endif  // QLORA_FOREIGN_YAML_OPTIONS_H_
