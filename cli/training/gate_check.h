// `--gate`: what an adapter has lost of what the base knows, measured when the run has ended.
#ifndef QLORA_CLI_TRAINING_GATE_CHECK_H_
#define QLORA_CLI_TRAINING_GATE_CHECK_H_

#include <string>

#include "command/verb.h"
#include "qlora/train_options.h"

namespace qlora {

// The exit code of a run whose adapter is saved and has lost more than the gate allows.
inline constexpr int kGateExit = 4;

// Measures the base and the adapter in `adapter_dir` by the suite, prints a table on console.err
// and writes gate.json into adapter_dir. Returns 0 or kGateExit. Errors: as ReadGateSuite; Runtime
// when the file cannot be written.
int CheckGate(const std::string& suite, const TrainOptions& options, const std::string& adapter_dir,
              int threads, const Console& console);

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_GATE_CHECK_H_
