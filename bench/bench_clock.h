// The clocks that measurements read.
#ifndef QLORA_BENCH_BENCH_CLOCK_H_
#define QLORA_BENCH_BENCH_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace qlora::bench {

// kCpu: the time that a processor has worked for the calling thread, which other processes hardly
// move. It says nothing about what several threads do.
enum class Clock : std::uint8_t { kWall, kCpu };

// Time since it was made. Read by the thread that made it.
class Timer {
 public:
  explicit Timer(Clock clock)
      : id_(clock == Clock::kCpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC) {}
  double seconds() const { return Now(id_) - start_; }

 private:
  static double Now(clockid_t id) {
    timespec now = {};
    clock_gettime(id, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  clockid_t id_;
  double start_ = Now(id_);
};

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_CLOCK_H_
