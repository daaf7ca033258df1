// The files of an entry of Axolotl's data sets: path, data_files, split and weight.
#ifndef QLORA_FOREIGN_AXOLOTL_FILES_H_
#define QLORA_FOREIGN_AXOLOTL_FILES_H_

#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>

#include "foreign/rules.h"

namespace qlora {

// The slice in "train[:1%]"; "" for the whole split, nothing for other splits.
std::optional<std::string> SliceOf(const YAML::Node& split);

// Adds the files of an entry to `our_key`, dataset or eval_dataset, with slice and weight.
void AddFiles(const YAML::Node& item, MigrationTarget& target, const char* our_key);

// Says what becomes of the weight of an entry.
void CarryWeight(const YAML::Node& value, MigrationTarget& target, const char* our_key);

}  // namespace qlora

#endif  // QLORA_FOREIGN_AXOLOTL_FILES_H_
