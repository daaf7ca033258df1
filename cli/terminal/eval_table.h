// What `qlora eval` measured, for people and for programs.
#ifndef QLORA_CLI_TERMINAL_EVAL_TABLE_H_
#define QLORA_CLI_TERMINAL_EVAL_TABLE_H_

#include <string>

#include "io/json_fwd.h"
#include "qlora/model.h"

namespace qlora {

std::string EvalTable(const EvalResult& result);
// Both beside each other.
std::string EvalComparison(const EvalResult& base, const EvalResult& adapter);
// per_token: with the tokens and their log-probabilities.
OrderedJson EvalJson(const EvalResult& result, bool per_token);

}  // namespace qlora

#endif  // QLORA_CLI_TERMINAL_EVAL_TABLE_H_
