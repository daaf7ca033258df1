// The logs of a run. Every step and evaluation goes to JSON Lines and, where wanted, to CSV and to
// TensorBoard event files.
#ifndef QLORA_TRAIN_TRAIN_LOG_H_
#define QLORA_TRAIN_TRAIN_LOG_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "qlora/train.h"

namespace qlora {

inline constexpr const char* kStepLog = "train_log";      // .jsonl, .csv: a line for each step
inline constexpr const char* kEvalLog = "eval_log";       // likewise for each evaluation
inline constexpr const char* kSampleLog = "samples";      // .jsonl: texts that the model wrote
inline constexpr const char* kRunInfo = "run_info.json";  // plan and data
inline constexpr const char* kTrainConfig = "train_config.json";  // the options

enum class LogKind : std::uint8_t { kStep, kEval, kSample };

// The values of one entry in the order of the columns; the first is "step".
using LogFields = std::vector<std::pair<const char*, Json>>;

class LogSink {
 public:
  virtual ~LogSink() = default;
  // Written through at once. Errors: Runtime (disk full ...).
  virtual void Write(LogKind kind, const LogFields& fields) = 0;
};

class TrainLog {
 public:
  // Keeps the lines of steps up to `step` of existing logs in `dir`; a resumed run writes the rest
  // anew.
  TrainLog(const TrainOptions& options, std::int64_t step);

  void Write(const StepReport& report);
  void Write(std::int64_t step, const EvalReport& report);
  void Write(const SampleReport& report);

 private:
  void Write(LogKind kind, const LogFields& fields);

  std::vector<std::unique_ptr<LogSink>> sinks_;
};

// Which logs options.report_to names besides JSON Lines, which are always written.
struct LogTargets {
  bool csv = false;
  bool tensorboard = false;
};
// Errors: InvalidInput for a service that is not there.
LogTargets ParseReportTo(const std::vector<std::string>& report_to);

// Where event files go: options.logging_dir, or output_dir/runs.
std::filesystem::path LoggingDir(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_TRAIN_TRAIN_LOG_H_
