// What a run wrote about itself, in one piece, for pages and scripts.
#ifndef QLORA_TRAIN_RUN_RECORD_H_
#define QLORA_TRAIN_RUN_RECORD_H_

#include <cstdint>
#include <filesystem>
#include <string>

namespace qlora {

// Steps of one run in a record at most; of longer runs every n-th is taken.
inline constexpr std::int64_t kMaxRecordedSteps = 10000;

// A JSON object about the run in `dir`, which may still be going on:
//   name       name of the folder
//   steps      columns of train_log.jsonl: {"step": [...], "loss": [...], ...}; NaN is null
//   every      1, or n: every n-th step and the last are there
//   tokens     trained tokens of all steps
//   evals      columns of eval_log.jsonl
//   samples    lines of samples.jsonl
//   options    train_config.json
//   total_steps, memory, data, eval_data   of run_info.json, where there is one
//   finished   whether the adapter is there
// Errors: InvalidInput when no run lies there.
std::string RunRecord(const std::filesystem::path& dir);

}  // namespace qlora

#endif  // QLORA_TRAIN_RUN_RECORD_H_
