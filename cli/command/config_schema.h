// A JSON Schema of the YAML files that a verb reads.
#ifndef QLORA_CLI_COMMAND_CONFIG_SCHEMA_H_
#define QLORA_CLI_COMMAND_CONFIG_SCHEMA_H_

#include <string>

#include "command/common.h"

namespace qlora {

// Returns a schema of draft 2020-12, made from the table that parses: names, aliases, types,
// choices, defaults, help. A file that it accepts is one whose keys and types ReadConfigFile
// accepts, but for two names of one option that say different values, which no schema can compare.
// It is stricter in spelling only: keys with underscores, booleans as YAML has them.
OrderedJson ConfigSchema(const OptionTable& table, const std::string& title);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_CONFIG_SCHEMA_H_
