// Options of decisions that the records at hand do not read.
#ifndef QLORA_DECISION_DECISION_OPTIONS_H_
#define QLORA_DECISION_DECISION_OPTIONS_H_

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "decision/decision_record.h"
#include "qlora/data.h"

namespace qlora {

// True for an option that says what records of tables leave out.
bool IsOfTables(std::string_view option);

// The options that differ from their defaults, and mean nothing for records without questions.
std::vector<std::string> GivenOptions(const DecisionReading& fields);
// Returns the first of these options that records of these forms do not read; nothing when all are
// read. forms: empty for records without questions.
std::optional<std::string> FindIdle(const std::vector<std::string>& given,
                                    const std::set<DecisionForm>& forms);
// Errors: InvalidInput for an option that FindIdle finds. where: the data.
void CheckRead(const std::vector<std::string>& given, const std::set<DecisionForm>& forms,
               const std::string& where);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_OPTIONS_H_
