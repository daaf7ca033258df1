// Help texts, made from the same declarations that the command line is parsed with.
#ifndef QLORA_CLI_COMMAND_HELP_H_
#define QLORA_CLI_COMMAND_HELP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "command/verb.h"

namespace qlora {

// Returns the help of the program: its verbs and the first commands to try. columns: the width of
// the text.
std::string ProgramHelp(const std::vector<std::unique_ptr<Verb>>& verbs, std::int64_t columns);

// Returns the help of one verb: its purpose, examples, and its options by section, with defaults,
// choices and aliases.
std::string VerbHelp(const VerbText& text, const OptionTable& table, std::int64_t columns);

// The parts that help, manual pages and completions share: " N", " TEXT" ... or "" for a flag; the
// text of an option with its choices, default and aliases; true when text.required has the key.
std::string_view Placeholder(const Option& option);
std::string OptionMeaning(const Option& option, bool required);
bool IsRequired(const VerbText& text, const std::string& key);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_HELP_H_
