#include "machine/pool_thread.h"

#include <pthread.h>
#include <time.h>

#include <utility>

namespace qlora {
namespace {

// Returns the next allowed core after `cpu`, counted in a circle; `cpu` itself if no other is
// allowed.
int NextAllowed(const cpu_set_t& allowed, int cpu) {
  do {
    cpu = (cpu + 1) % CPU_SETSIZE;
  } while (!CPU_ISSET(cpu, &allowed));
  return cpu;
}

}  // namespace

void PoolThread::Start(std::function<void()> work) { thread_ = std::thread(std::move(work)); }

void PoolThread::Join() {
  if (thread_.joinable()) thread_.join();
}

bool PoolThread::LendCore() {
  const int cpu = cpu_.load(std::memory_order_relaxed);
  if (cpu == kOutside || lent_) return false;
  // Only a thread that has not run since the call before is helped; one that runs would lose by
  // moving.
  const auto now = TimeRun();
  if (!now || std::exchange(time_run_, *now) != *now) return false;
  const int mine = sched_getcpu();
  if (pthread_getaffinity_np(thread_.native_handle(), sizeof(allowed_), &allowed_) != 0) {
    return false;
  }
  if (mine < 0 || !CPU_ISSET(mine, &allowed_)) return false;
  // A thread that waits behind this very caller moves on to another core, or it would wait there
  // again.
  home_ = cpu == mine ? NextAllowed(allowed_, mine) : cpu;
  return lent_ = AllowOnly(mine);
}

void PoolThread::ReturnCore() {
  if (!std::exchange(lent_, false)) return;
  // The first call moves the thread, because it names one core; the second gives it its cores back.
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

bool PoolThread::Allow(const cpu_set_t& cpus) {
  return pthread_setaffinity_np(thread_.native_handle(), sizeof(cpus), &cpus) == 0;
}

bool PoolThread::AllowOnly(int cpu) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  return Allow(only);
}

}  // namespace qlora
