#include "training/stall_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
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

// A rank that computes is not stalled, however long its work takes. One that waits has done its own
// part, so that the others should have done theirs soon.
void StallWatch::Watch(std::int64_t timeout) {
  constexpr double kPatience = 3;
  std::int64_t seen = -1;
  bool waited = false;
  double longest_work = 0;
  Stopwatch since;  // the rank waits, or computes
  bool told = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenLooks, [&] { return ended_; })) {
    if (ranks_.is_root() && guard_.signal() == SIGTERM && !told) {
      told = true;
      WriteLine(fmt::format(
          "told to end (SIGTERM, which mpirun sends after Ctrl+C, or when another rank has ended): "
          "the step ends with a checkpoint if there is time for both. {} has the checkpoints so "
          "far, if any, from the last of which `qlora resume` goes on\n",
          output_dir_));
    }
    const std::string_view call = ranks_.call();
    const bool waits = !call.empty();
    if (ranks_.calls() != seen || waits != waited) {
      if (!waited) longest_work = std::max(longest_work, since.seconds());
      seen = ranks_.calls();
      waited = waits;
      since = Stopwatch();
    }
    const double limit = std::max(static_cast<double>(timeout), kPatience * longest_work);
    if (timeout == 0 || !waits || since.seconds() < limit) continue;
    WriteLine(fmt::format(
        "error: rank {} of {} ({}) waits in '{}' since {:.0f} s: a rank has stopped, "
        "or a network is cut. Resume from the last checkpoint in {}, if any; a longer wait: "
        "--ddp_timeout\n",
        ranks_.rank(), ranks_.size(), ranks_.host(), call, limit, output_dir_));
    _exit(1);
  }
}

}  // namespace qlora
