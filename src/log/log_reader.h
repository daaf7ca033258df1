// Reads the logs of a run into one JSON object, for pages and scripts.
#ifndef QLORA_LOG_LOG_READER_H_
#define QLORA_LOG_LOG_READER_H_

#include <cstdint>
#include <filesystem>
#include <string>

namespace qlora {

// The most steps of one run that are read, and the most evaluations; of more every n-th is taken.
inline constexpr std::int64_t kMaxRecordedSteps = 10000;
// The newest steps of which the ranks are read.
inline constexpr std::int64_t kRankSteps = 20;
// The most rounds of samples that are read: the texts of one step. Of more every n-th is taken, of
// a round the first texts, and of the text of all as many bytes.
inline constexpr std::int64_t kMaxSampleRounds = 100;
inline constexpr std::int64_t kMaxRoundSamples = 100;
inline constexpr std::int64_t kMaxSampleBytes = std::int64_t{4} << 20;

// A JSON object about the run in `dir`, which may still be training:
//   name       name of the folder
//   steps      columns of train_log.jsonl: {"step": [...], "loss": [...], ...}; NaN is null
//   every      n: `steps` holds every n-th step and the last
//   tokens     trained tokens of all steps
//   ranks      of each rank: the means of the newest steps, at most kRankSteps; empty for a run of
//              one process
//   evals      columns of eval_log.jsonl
//   every_eval m: `evals` holds every m-th evaluation, the last, and the first of the smallest loss
//   samples    lines of samples.jsonl: those of every n-th step that has some and of the last,
//              which has room for its texts up to half of kMaxSampleBytes
//   samples_left_out   the number of the other lines
//   options    train_config.json
//   total_steps, memory, data, eval_data   of run_info.json, where it has them in their forms
//   tasks      tables of gate.json and task_results.json: {"name", "rows": [{"task", "figure",
//              "value", "with", "difference", "low", "high", "p", ...}]}, in the names of gate.json
//   damaged_lines   lines of the logs that are not JSON objects, which are left out
//   finished   true when the run has ended and its adapter is saved
// Errors: InvalidInput when the folder holds no run, or when its train_log.jsonl has no line that
// can be read.
std::string ReadRunLogs(const std::filesystem::path& dir);

}  // namespace qlora

#endif  // QLORA_LOG_LOG_READER_H_
