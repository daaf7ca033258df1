// The files of a run: its folder, its log, its recorded options.
#ifndef QLORA_TRAIN_RUN_FILES_H_
#define QLORA_TRAIN_RUN_FILES_H_

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "io/json.h"
#include "qlora/train.h"

namespace qlora {

// The options as JSON text values. for_resume: only those that a resumed run must share, which
// leaves out where and how often it writes.
Json OptionsToJson(TrainOptions options, bool for_resume);

// Whether the folder holds a finished adapter.
bool HoldsAdapter(const std::filesystem::path& dir);

// The nearest part of the path that exists.
std::filesystem::path ExistingAncestor(std::filesystem::path path);

// Checks, without writing, that a run may use the folder. Errors: InvalidInput when it cannot be
// written, is no folder, or holds a run and is neither to be overwritten nor resumed.
void CheckRunDir(const std::filesystem::path& dir, bool overwrite, bool resume);
// Makes the folder and, when overwriting, removes the files of the old run; other files stay.
void PrepareRunDir(const std::filesystem::path& dir, bool overwrite);

// train_log.jsonl: one line for each optimizer step, in full precision, written through at once;
// eval_log.jsonl: likewise for each evaluation.
class TrainLog {
 public:
  // Keeps the lines of steps up to `step` of existing logs (a resumed run writes the rest anew).
  TrainLog(const std::filesystem::path& dir, std::int64_t step);

  void Write(const StepReport& report);
  void Write(std::int64_t step, const EvalReport& report);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct LineFile {
    std::filesystem::path path;
    std::unique_ptr<std::FILE, Close> file;
  };
  static LineFile Open(const std::filesystem::path& path, std::int64_t step);
  static void WriteLine(const LineFile& file, const Json& line);

  LineFile steps_;
  LineFile evals_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_RUN_FILES_H_
