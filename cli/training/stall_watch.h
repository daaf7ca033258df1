// Ends a rank that waits for others in vain, which nothing else would.
#ifndef QLORA_CLI_TRAINING_STALL_WATCH_H_
#define QLORA_CLI_TRAINING_STALL_WATCH_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "qlora/communicator.h"
#include "qlora/train_options.h"
#include "terminal/interrupt.h"

namespace qlora {

// A thread that looks, while this object lives, whether the calls of the communicator end. When one
// has waited `timeout` seconds, and three times as long as the longest work between two calls, it
// says so on standard error, and ends the process with code 1; then the launcher ends the other
// ranks. On SIGTERM, rank 0 says what becomes of the run, because the launcher may end it before
// the step is done.
class StallWatch {
 public:
  // timeout 0: never. options: of the run, for its name.
  StallWatch(const Communicator& ranks, const InterruptGuard& guard, std::int64_t timeout,
             const TrainOptions& options);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  void Watch(std::int64_t timeout);

  const Communicator& ranks_;
  const InterruptGuard& guard_;
  std::string output_dir_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_STALL_WATCH_H_
