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

// Up to which steps a resumed run keeps the lines of existing logs; it writes the rest anew.
struct KeptSteps {
  std::int64_t steps = 0;  // 0: none of any kind, a new run
  std::int64_t evals = 0;
  std::int64_t samples = 0;

  std::int64_t Of(LogKind kind) const {
    return kind == LogKind::kStep ? steps : kind == LogKind::kEval ? evals : samples;
  }
};

class TrainLog {
 public:
  TrainLog(const TrainOptions& options, const KeptSteps& kept);

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
