// One training run of a job, as a process of its own.
#ifndef QLORA_SERVE_JOBS_TRAINER_H_
#define QLORA_SERVE_JOBS_TRAINER_H_

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace qlora {

struct TrainingTask {
  std::vector<std::string> arguments = {};  // of the program: {"train", CONFIG, "--json"}
  std::filesystem::path run = {};           // its folder, which is in the one where it runs
  std::filesystem::path output = {};        // files for what it prints: replaced, and added to
  std::filesystem::path log = {};
};

enum class StopRequest { kNone, kCheckpoint, kNow };  // kCheckpoint: save one, then end

// Exit codes of a training that was stopped: with a checkpoint, by SIGTERM before the program has
// read its options, and by SIGKILL.
inline constexpr int kInterruptedExit = 130;
inline constexpr int kTerminatedExit = 143;
inline constexpr int kKilledExit = 137;

struct TrainingEnd {
  int exit_code = 0;        // of `qlora train`
  std::string output = {};  // the JSON that it printed
};

// Runs a training to its end. watch: is called several times a second on the thread of the caller,
// and says whether to stop. Errors: Runtime when it cannot be started.
using Trainer =
    std::function<TrainingEnd(const TrainingTask& task, const std::function<StopRequest()>& watch)>;

// Runs `program` in the folder that holds the run. The program ends with the thread that calls it,
// whatever ends that: a run without its server would hold the folder that the next server resumes
// from. It gives way to this process where both want the same core.
Trainer ProcessTrainer(std::filesystem::path program);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_TRAINER_H_
