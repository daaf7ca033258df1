#include "base/pool_thread.h"

#include <pthread.h>
#include <time.h>

#include <utility>

namespace qlora {

void PoolThread::Start(int number, std::function<void()> work) {
  number_ = number;
  thread_ = std::thread(std::move(work));
}

void PoolThread::Join() {
  if (thread_.joinable()) thread_.join();
}

bool PoolThread::LendCore() {
  const int cpu = cpu_.load(std::memory_order_relaxed);
  const auto now = TimeRun();
  if (cpu == kOutside || lent_ || !now) return false;
  if (std::exchange(time_run_, *now) != *now) return false;
  const int mine = sched_getcpu();
  if (pthread_getaffinity_np(thread_.native_handle(), sizeof(allowed_), &allowed_) != 0) {
    return false;
  }
  if (mine < 0 || !CPU_ISSET(mine, &allowed_)) return false;
  home_ = cpu == mine ? CoreAfter(mine) : cpu;
  AllowOnly(mine);
  return lent_ = true;
}

void PoolThread::ReturnCore() {
  if (!std::exchange(lent_, false)) return;
  AllowOnly(home_);
  Allow(allowed_);
}

std::optional<std::chrono::nanoseconds> PoolThread::TimeRun() {
  clockid_t clock;
  timespec time;
  if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0) return std::nullopt;
  if (clock_gettime(clock, &time) != 0) return std::nullopt;
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// A system that does not allow it (a sandbox) leaves the thread where it is.
void PoolThread::Allow(const cpu_set_t& cpus) {
  pthread_setaffinity_np(thread_.native_handle(), sizeof(cpus), &cpus);
}

void PoolThread::AllowOnly(int cpu) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  Allow(only);
}

int PoolThread::CoreAfter(int cpu) const {
  for (int steps = number_ % CPU_COUNT(&allowed_); steps > 0; --steps) {
    do {
      cpu = (cpu + 1) % CPU_SETSIZE;
    } while (!CPU_ISSET(cpu, &allowed_));
  }
  return cpu;
}

}  // namespace qlora
