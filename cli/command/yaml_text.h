// Parses YAML with messages that name file and line.
#ifndef QLORA_CLI_COMMAND_YAML_TEXT_H_
#define QLORA_CLI_COMMAND_YAML_TEXT_H_

#include <yaml-cpp/yaml.h>

#include <string>

namespace qlora {

// Returns the text of a YAML file. Errors: InvalidInput, with the line in `file`, where it is not
// valid.
YAML::Node ParseYaml(const std::string& text, const std::string& file);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_YAML_TEXT_H_
