// A long job with a progress bar, which Ctrl+C ends.
#ifndef QLORA_CLI_TERMINAL_PROGRESS_H_
#define QLORA_CLI_TERMINAL_PROGRESS_H_

#include <functional>
#include <string_view>

#include "command/verb.h"
#include "qlora/context.h"

namespace qlora {

// Calls job(progress), and throws Interrupted out of a report of progress when a signal came.
// Returns true when a signal came after the last report, too late to stop the job, which is done.
bool RunWithProgress(const Console& console, std::string_view what,
                     const std::function<void(const ProgressFn&)>& job);

}  // namespace qlora

#endif  // QLORA_CLI_TERMINAL_PROGRESS_H_
