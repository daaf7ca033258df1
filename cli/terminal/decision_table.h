// Metrics of decisions, as tables and JSON.
#ifndef QLORA_CLI_TERMINAL_DECISION_TABLE_H_
#define QLORA_CLI_TERMINAL_DECISION_TABLE_H_

#include <string>

#include "io/json_fwd.h"
#include "qlora/decision.h"

namespace qlora {

// A column for all questions and for each type. Scripts read the names: they are part of the
// interface.
std::string DecisionTable(const DecisionResult& result);

// {"decision": {...}, "decision_before_temperature": {...}, "temperature": {...}, ...}.
OrderedJson DecisionJson(const DecisionResult& result);

}  // namespace qlora

#endif  // QLORA_CLI_TERMINAL_DECISION_TABLE_H_
