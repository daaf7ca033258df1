// The verbs, one to a file.
//
// A verb declares its options (command/verb.h), and main.cc picks it, parses the arguments
// (command/command_line.h), runs it, and turns errors into exit codes. Verbs compute through
// include/qlora and are the only code that prints. Help, completion, manual pages and the JSON
// Schema are made from the declared options (command/help.h, completion.h, man_page.h,
// config_schema.h), so that they never differ from the program.
//
//   training/   train, resume, plan and validate: settings, the one check of a run, the display
//   terminal/   status line, width of lines, tables, interruption
//   chat/       commands, line editing and saved conversations, from chat_session.h
//   migrate/    configurations and option names of other trainers
//   report/     the page of runs and its live server
#ifndef QLORA_CLI_VERBS_VERBS_H_
#define QLORA_CLI_VERBS_VERBS_H_

#include <memory>
#include <vector>

#include "command/verb.h"

namespace qlora {

// Returns every verb, in the order of the help text.
std::vector<std::unique_ptr<Verb>> AllVerbs();

std::unique_ptr<Verb> MakeTrainVerb();
std::unique_ptr<Verb> MakeResumeVerb();
std::unique_ptr<Verb> MakeGenerateVerb();
std::unique_ptr<Verb> MakeChatVerb();
std::unique_ptr<Verb> MakeServeVerb();
std::unique_ptr<Verb> MakeEvalVerb();
std::unique_ptr<Verb> MakeDecideVerb();
std::unique_ptr<Verb> MakeCalibrateVerb();
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
std::unique_ptr<Verb> MakeDoctorVerb();
std::unique_ptr<Verb> MakeCompletionVerb();
std::unique_ptr<Verb> MakeManVerb();

}  // namespace qlora

#endif  // QLORA_CLI_VERBS_VERBS_H_
