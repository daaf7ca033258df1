// A YAML file of options, read into the table of a verb. Names of other programs are answered with
// ours, as on the command line.
#ifndef QLORA_CLI_COMMAND_CONFIG_FILE_H_
#define QLORA_CLI_COMMAND_CONFIG_FILE_H_

#include <filesystem>
#include <string>
#include <vector>

#include "qlora/options.h"

namespace qlora {

// Sets options from a YAML map of keys to scalars or lists, or maps where an option TakesPairs
// or TakesJson; null leaves a default. `dataset` may be a list of {path, type} maps. Errors
// (InvalidInput) start with "file:line: ": as above, a map where a value belongs, or a file that is
// not YAML.
void ReadConfigFile(const std::filesystem::path& path, OptionTable& table,
                    std::vector<std::string>& notes);

// True when items of this list may be {path, type} maps.
bool TakesDatasetMaps(const Option& option);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_CONFIG_FILE_H_
