// Configurations of other trainers, carried over into ours.
//
// The tables of the trainers are in foreign/rules.h. tests/cli/migrate_layout_test.cc compares
// texts with the trainers' own.
#ifndef QLORA_CLI_MIGRATE_MIGRATE_H_
#define QLORA_CLI_MIGRATE_MIGRATE_H_

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <vector>

namespace qlora {

// The fate of one key of the other trainer.
enum class Fate {
  kCarried,      // text: our key and value
  kNotNeeded,    // text: why nothing has to be said here
  kUnsupported,  // text: why, and what to do instead
};
struct MigratedKey {
  std::string key;
  std::string value;  // as YAML on one line
  Fate fate;
  std::string text;
};

struct Migration {
  std::string tool;               // "Axolotl", "LLaMA-Factory", "TRL" ...
  std::string yaml;               // our configuration, with comments on keys that were left out
  std::vector<MigratedKey> keys;  // every key of the file, in its order
};

// The names that `from` may have: "auto" and one for each tool.
std::vector<std::string> MigrationSources();

// True for a map with several keys that only other trainers have, or with the arguments of one of
// their Python classes as a map.
bool IsForeignConfiguration(const YAML::Node& root);

// text: YAML or JSON; file: its name, for messages; from: a name of MigrationSources. The
// result passes the option parser of `train`, and holds the defaults of the other trainer where
// ours differ. Errors (InvalidInput): no YAML map; keys that do not show which tool they belong to.
Migration Migrate(std::string_view text, const std::string& file, const std::string& from);

}  // namespace qlora

#endif  // QLORA_CLI_MIGRATE_MIGRATE_H_
