// Scripts that complete the command line of the program in shells, made from the option tables.
#ifndef QLORA_CLI_COMMAND_COMPLETION_H_
#define QLORA_CLI_COMMAND_COMPLETION_H_

#include <string>
#include <vector>

#include "command/verb.h"

namespace qlora {

// A verb with its declared options.
struct DeclaredVerb {
  VerbText text;
  OptionTable table;
};

// Returns the script of a shell. It completes verbs, options, the values of options with choices,
// and otherwise file names.
std::string BashCompletion(const std::vector<DeclaredVerb>& verbs);
std::string ZshCompletion(const std::vector<DeclaredVerb>& verbs);
std::string FishCompletion(const std::vector<DeclaredVerb>& verbs);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_COMPLETION_H_
