// Help texts, made from the same declarations that the command line is parsed with.
#ifndef QLORA_CLI_HELP_H_
#define QLORA_CLI_HELP_H_

#include <memory>
#include <string>
#include <vector>

#include "verb.h"

namespace qlora {

// The program, its verbs, and the first commands to try.
std::string ProgramHelp(const std::vector<std::unique_ptr<Verb>>& verbs);

// One verb: what it does, examples, and its options by section, with defaults, choices and aliases.
std::string VerbHelp(const VerbText& text, const OptionTable& table);

}  // namespace qlora

#endif  // QLORA_CLI_HELP_H_
