// The verbs, one to a file.
#ifndef QLORA_CLI_VERBS_VERBS_H_
#define QLORA_CLI_VERBS_VERBS_H_

#include <memory>

#include "command/verb.h"

namespace qlora {

std::unique_ptr<Verb> MakeTrainVerb();
std::unique_ptr<Verb> MakeResumeVerb();
std::unique_ptr<Verb> MakeGenerateVerb();
std::unique_ptr<Verb> MakeChatVerb();
std::unique_ptr<Verb> MakeEvalVerb();
std::unique_ptr<Verb> MakeQuantizeVerb();
std::unique_ptr<Verb> MakeExportVerb();
std::unique_ptr<Verb> MakeTokenizeVerb();
std::unique_ptr<Verb> MakeInspectVerb();
std::unique_ptr<Verb> MakePlanVerb();
std::unique_ptr<Verb> MakeValidateVerb();
std::unique_ptr<Verb> MakeMigrateVerb();
std::unique_ptr<Verb> MakeConfigSchemaVerb();
std::unique_ptr<Verb> MakeReportVerb();
std::unique_ptr<Verb> MakePullVerb();
std::unique_ptr<Verb> MakeBenchVerb();
std::unique_ptr<Verb> MakeDoctorVerb();
std::unique_ptr<Verb> MakeCompletionVerb();
std::unique_ptr<Verb> MakeManVerb();

}  // namespace qlora

#endif  // QLORA_CLI_VERBS_VERBS_H_
