// Reads the logs of a run into one JSON object, for pages and scripts.
#ifndef QLORA_LOG_LOG_READER_H_
#define QLORA_LOG_LOG_READER_H_

#include <cstdint>
#include <filesystem>
#include <string>

namespace qlora {

// The most steps of one run that are read; of longer runs every n-th step is taken.
inline constexpr std::int64_t kMaxRecordedSteps = 10000;

// A JSON object about the run in `dir`, which may still be training:
//   name       name of the folder
//   steps      columns of train_log.jsonl: {"step": [...], "loss": [...], ...}; NaN is null
//   every      n: `steps` holds every n-th step and the last
//   tokens     trained tokens of all steps
//   evals      columns of eval_log.jsonl
//   samples    lines of samples.jsonl
//   options    train_config.json
//   total_steps, memory, data, eval_data   of run_info.json, if it exists
//   damaged_lines   lines of the logs that are not JSON objects, which are left out
//   finished   true when the run has ended and its adapter is saved
// Errors: InvalidInput when the folder holds no run, or when its train_log.jsonl has no line that
// can be read.
std::string ReadRunLogs(const std::filesystem::path& dir);

}  // namespace qlora

#endif  // QLORA_LOG_LOG_READER_H_
