// Parses YAML with messages that name file and line.
#ifndef QLORA_RECORDS_YAML_TEXT_H_
#define QLORA_RECORDS_YAML_TEXT_H_

#include <yaml-cpp/yaml.h>

#include <string>

namespace qlora {

// Returns the text of a YAML file, with the maps behind merge keys (<<) in place. Errors:
// InvalidInput, with the line in `file`, where it is not valid, has several documents, or has a key
// twice.
YAML::Node ParseYaml(const std::string& text, const std::string& file);

// The value as JSON text, with the types that YAML gives to words without quotes.
std::string JsonText(const YAML::Node& value);

}  // namespace qlora

#endif  // QLORA_RECORDS_YAML_TEXT_H_
