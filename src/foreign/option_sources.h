// What sets each option of a run. Names of several programs may set one option: those that agree
// are no mistake, files for several trainers say things twice.
#ifndef QLORA_FOREIGN_OPTION_SOURCES_H_
#define QLORA_FOREIGN_OPTION_SOURCES_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "qlora/options.h"

namespace qlora {

struct OptionSource {
  std::string origin;   // for messages about it
  std::string place;    // where the user wrote it: "run.yaml:3", or the name of a keyword
  bool yields = false;  // ForeignOption::yields
};

class OptionSources {
 public:
  // Both outlive this.
  OptionSources(OptionTable& table, std::vector<std::string>& notes)
      : table_(table), notes_(notes) {}

  // Sets the option `key` by set(). Of two sources that disagree the one that does not yield holds,
  // with a note. Errors: InvalidInput when neither yields, or both do.
  void Set(const std::string& key, const OptionSource& source, const std::function<void()>& set);

 private:
  OptionTable& table_;
  std::vector<std::string>& notes_;
  std::map<const Option*, OptionSource> sources_;
};

}  // namespace qlora

#endif  // QLORA_FOREIGN_OPTION_SOURCES_H_
