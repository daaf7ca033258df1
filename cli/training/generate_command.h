// The command that tries an adapter.
#ifndef QLORA_CLI_TRAINING_GENERATE_COMMAND_H_
#define QLORA_CLI_TRAINING_GENERATE_COMMAND_H_

#include <string>

#include "qlora/prompt.h"

namespace qlora {

// Returns a shell command that gives the example to the model with the adapter (may be ""); without
// an example, one with a place for a prompt.
std::string GenerateCommand(const std::string& model, const std::string& adapter,
                            const PromptExample& example);

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_GENERATE_COMMAND_H_
