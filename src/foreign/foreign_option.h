// Options under the names that other trainers and command lines give them.
#ifndef QLORA_FOREIGN_FOREIGN_OPTION_H_
#define QLORA_FOREIGN_FOREIGN_OPTION_H_

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qlora/options.h"

namespace qlora {

// True for the name of an option of training.
bool IsTrainingOption(const std::string& name);

// The tables of `qlora migrate`, and the options of other command lines.
bool IsForeignOption(std::string_view key);
// True when the option is a name of one of ours whose value is a text.
bool CopiesText(OptionTable& table, std::string_view key);
// True when `word` after the option is its value. A flag takes true, false and the like. An
// option that does not matter may be a flag: where the verb still takes words (takes_words), such
// an option takes no other words than numbers.
bool TakesValue(OptionTable& table, std::string_view key, const std::string& word,
                bool takes_words);

// The same for a flag of ours: true when `word` after it is a value of other programs
// ("--gradient_checkpointing unsloth"), and not the next argument.
bool IsForeignFlagValue(std::string_view key, std::string_view word);

// True when our option of that name does not take the value, and other programs have values of
// their own for the key ("optim: adamw_hf", "eval_steps: 0.1"). TranslateOption then gives their
// meaning.
bool IsForeignValue(OptionTable& table, std::string_view key, const std::string& value);

// The meaning of an option with a name or a value of another program.
struct ForeignOption {
  std::vector<std::pair<std::string, YAML::Node>> settings;  // options of `table` and their values
  std::vector<std::string> notes;                            // why there is nothing to set
  bool yields = false;  // another option may set the same to another value, which then holds
};
// The note on an option that has yielded to another, both as the user wrote them.
std::string YieldNote(std::string_view yielded, std::string_view other, std::string_view our_key);

// IsForeignOption(key), and `key` is not an option of `table` or IsForeignValue. Errors
// (InvalidInput): the option asks for a feature that qlora or this verb does not have; the message
// says what to write instead.
ForeignOption TranslateOption(OptionTable& table, std::string_view key, const YAML::Node& value,
                              std::string_view origin);

// The command to type instead of a verb of other programs ("merge", "finetune"); "" for an unknown
// verb.
std::string VerbAdvice(std::string_view verb);

}  // namespace qlora

#endif  // QLORA_FOREIGN_FOREIGN_OPTION_H_
