// The command line of a verb: arguments and a YAML file fill its OptionTable.
//
// The table (qlora/options.h) has names, aliases, types, choices, defaults and help. Jobs of the
// library declare their options themselves, as TrainOptions::Declare does in plan/train_options.cc,
// so that C++, Python, YAML and the command line have the same ones. Names that other programs use
// are answered with ours (foreign/foreign_option.h).
#ifndef QLORA_CLI_COMMAND_COMMAND_LINE_H_
#define QLORA_CLI_COMMAND_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "command/verb.h"
#include "qlora/options.h"

namespace qlora {

// Sets options from arguments of these forms; dashes and underscores in keys are the same:
//   --key value   --key=value   key=value   --flag   --no-flag   --config run.yaml
//   --list a b c
// Bare arguments set the options named in text.positionals that no key sets, in order; "config" may
// be among them, and a list at the end takes all remaining arguments. Bare arguments after --list
// belong to the list, except those that text.required still needs. After "--" every argument is
// bare. The command line wins over the YAML file, wherever --config stands. Names of other programs
// (foreign/foreign_option.h) work with one dash or two, and so do their values of names that we
// share; `notes` lists the names that had nothing to set. Returns true when help was asked for (-h,
// --help); the other arguments are then ignored. Errors (InvalidInput): an unknown key, with the
// nearest known one; a name given twice, or two names of one option with different values; a
// missing or wrong value; a bare argument too many.
bool ParseCommandLine(const std::vector<std::string>& arguments, const VerbText& text,
                      OptionTable& table, std::vector<std::string>& notes);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_COMMAND_LINE_H_
