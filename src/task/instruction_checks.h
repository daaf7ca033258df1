// IFEval: whether an answer follows instructions that a check of its text decides.
#ifndef QLORA_TASK_INSTRUCTION_CHECKS_H_
#define QLORA_TASK_INSTRUCTION_CHECKS_H_

#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace qlora {

// One instruction: "keywords:existence" and its arguments.
struct Instruction {
  std::string id;
  OrderedJson arguments;
};

// The instructions of a record: instruction_id_list and kwargs. Errors: InvalidInput where they do
// not fit one another.
std::vector<Instruction> InstructionsOf(const OrderedJson& record);

// False for instructions that need the sentences, words or language of a text, which other programs
// decide by trained models.
bool IsCheckOfText(std::string_view id);

// Errors: InvalidInput for an argument that is missing or of another type.
bool Follows(std::string_view answer, const Instruction& instruction);
// Also true where the answer without its first line, its last line, both, or its asterisks follows.
bool FollowsLoosely(std::string_view answer, const Instruction& instruction);

}  // namespace qlora

#endif  // QLORA_TASK_INSTRUCTION_CHECKS_H_
