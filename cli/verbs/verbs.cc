#include "verbs/verbs.h"

namespace qlora {

std::vector<std::unique_ptr<Verb>> AllVerbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
  // In the order of help: verbs of a first run come first. Completion and manual pages follow this
  // list, so a verb that is missing here does not exist.
  verbs.push_back(MakePullVerb());
  verbs.push_back(MakeTrainVerb());
  verbs.push_back(MakeResumeVerb());
  verbs.push_back(MakeGenerateVerb());
  verbs.push_back(MakeChatVerb());
  verbs.push_back(MakeServeVerb());
  verbs.push_back(MakeEvalVerb());
  verbs.push_back(MakeDecideVerb());
  verbs.push_back(MakeCalibrateVerb());
  verbs.push_back(MakeExportVerb());
  verbs.push_back(MakeQuantizeVerb());
  verbs.push_back(MakeInspectVerb());
  verbs.push_back(MakePlanVerb());
  verbs.push_back(MakeValidateVerb());
  verbs.push_back(MakeReportVerb());
  verbs.push_back(MakeConfigSchemaVerb());
  verbs.push_back(MakeMigrateVerb());
  verbs.push_back(MakeTokenizeVerb());
  verbs.push_back(MakeDoctorVerb());
  verbs.push_back(MakeCompletionVerb());
  verbs.push_back(MakeManVerb());
  return verbs;
}

}  // namespace qlora
