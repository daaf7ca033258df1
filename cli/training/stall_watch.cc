#include "training/stall_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string_view>

#include "base/stopwatch.h"

namespace qlora {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{100};

// A stopped rank may hold the lock of a stream, so that the text goes to the descriptor.
void WriteLine(const std::string& text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

StallWatch::StallWatch(const Communicator& ranks, const InterruptGuard& guard, std::int64_t timeout,
                       const TrainOptions& options)
    : ranks_(ranks),
      guard_(guard),
      output_dir_(options.output_dir),
      thread_([this, timeout] { Watch(timeout); }) {}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StallWatch::Watch(std::int64_t timeout) {
  std::int64_t seen = -1;
  Stopwatch since;
  bool told = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenLooks, [&] { return ended_; })) {
    if (const std::int64_t calls = ranks_.calls(); calls != seen) {
      seen = calls;
      since = Stopwatch();
    }
    if (ranks_.is_root() && guard_.signal() == SIGTERM && !told) {
      told = true;
      WriteLine(fmt::format(
          "ending after this step with a checkpoint; if the launcher ends the ranks before (mpirun "
          "does after a second), {} has the checkpoints so far, and `kill -USR1` with the number "
          "of "
          "mpirun would have saved one\n",
          output_dir_));
    }
    if (timeout == 0 || since.seconds() < static_cast<double>(timeout)) continue;
    const std::string_view call = ranks_.call();
    WriteLine(fmt::format(
        "error: rank {} of {} ({}): no progress for {} s, {}; a rank has stopped, or a network is "
        "cut. Resume from the last checkpoint in {}; a longer wait: --ddp_timeout\n",
        ranks_.rank(), ranks_.size(), ranks_.host(), timeout,
        call.empty() ? "in its own work" : fmt::format("waiting in '{}'", call), output_dir_));
    _exit(1);
  }
}

}  // namespace qlora
