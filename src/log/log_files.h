// The log files of a run: JSON Lines and CSV. tensorboard.h has a third format.
#ifndef QLORA_LOG_LOG_FILES_H_
#define QLORA_LOG_LOG_FILES_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// Of a log that is read, at most; a million steps have 300 MB.
inline constexpr std::int64_t kMaxLogBytes = std::int64_t{1} << 32;

inline constexpr const char* kStepLog = "train_log";  // .jsonl, .csv: a line for each step
inline constexpr const char* kEvalLog = "eval_log";   // .jsonl, .csv: a line for each evaluation
inline constexpr const char* kSampleLog = "samples";  // .jsonl: texts that the model wrote
// The answers of the result to the evaluation data of decisions: {"decision": {...},
// "decision_before_temperature": {...}}, as `eval` has them.
inline constexpr const char* kDecisionMetrics = "decision_metrics.json";

inline constexpr const char* kGateFile = "gate.json";  // what the gate of `train --gate` measured
// What `eval --task --json` printed, if somebody kept it there.
inline constexpr const char* kTaskResults = "task_results.json";

enum class LogKind : std::uint8_t { kStep, kEval, kSample };

// The values of one entry in the order of the columns; the first is "step". An object holds values
// that differ from run to run, by their names; it is no column. An array, as of ranks, is in JSON
// Lines alone.
using LogFields = std::vector<std::pair<std::string, Json>>;

// The logs of one format.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // Written through at once. Errors: Runtime (disk full ...).
  virtual void Write(LogKind kind, const LogFields& fields) = 0;
};

// The last step of each kind whose line a resumed run keeps in existing logs. Later lines are
// written again.
struct KeptSteps {
  std::int64_t steps = 0;  // 0: a new run, which keeps no line of any kind
  std::int64_t evals = 0;
  std::int64_t samples = 0;

  std::int64_t Of(LogKind kind) const {
    return kind == LogKind::kStep ? steps : kind == LogKind::kEval ? evals : samples;
  }
};

// train_log.jsonl, eval_log.jsonl and samples.jsonl in `dir`.
std::unique_ptr<LogSink> OpenJsonLines(const std::filesystem::path& dir, const KeptSteps& kept);

// train_log.csv and eval_log.csv in `dir`: comma-separated after a line of names; a NaN is written
// as nan. Samples are texts of many lines and are left out.
std::unique_ptr<LogSink> OpenCsv(const std::filesystem::path& dir, const KeptSteps& kept);

}  // namespace qlora

#endif  // QLORA_LOG_LOG_FILES_H_
