// `--gate`: what an adapter has lost of what the base knows, measured when the run has ended.
#ifndef QLORA_CLI_TASKS_GATE_CHECK_H_
#define QLORA_CLI_TASKS_GATE_CHECK_H_

#include <functional>
#include <string>

#include "command/verb.h"
#include "qlora/context.h"
#include "qlora/tasks.h"
#include "qlora/train_options.h"

namespace qlora {

// The exit code of a run whose adapter is saved and has lost more than the gate allows.
inline constexpr int kGateExit = 4;

// Measures the adapter in `adapter_dir`, and the base in the form that it was trained on, by the
// suite; prints a line for each task on console.err, and writes gate.json into adapter_dir. Returns
// 0 or kGateExit. check: called often, may throw to end the work. Errors: as EvaluateTask; Runtime
// when the file cannot be written.
int CheckGate(Context& context, const GateSuite& suite, const TrainOptions& options,
              const std::string& adapter_dir, const std::function<void()>& check,
              const Console& console);

}  // namespace qlora

#endif  // QLORA_CLI_TASKS_GATE_CHECK_H_
