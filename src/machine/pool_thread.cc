#include "machine/pool_thread.h"

#include <utility>

namespace qlora {
namespace {

// Returns the next allowed core after `cpu`, counted in a circle; `cpu` itself if no other is
// allowed.
int NextAllowed(const CoreSet& allowed, int cpu) {
  do {
    cpu = (cpu + 1) % static_cast<int>(allowed.size());
  } while (!allowed[cpu]);
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
  const auto now = TimeRun(thread_.native_handle());
  if (!now || std::exchange(time_run_, *now) != *now) return false;
  const int mine = CurrentCore();
  const auto allowed = CoresOf(thread_.native_handle());
  if (mine < 0 || !allowed || !allowed->test(mine)) return false;
  allowed_ = *allowed;
  // A thread that waits behind this very caller moves on to another core, or it would wait there
  // again.
  home_ = cpu == mine ? NextAllowed(allowed_, mine) : cpu;
  return lent_ = AllowOnly(mine);
}

void PoolThread::ReturnCore() {
  if (!std::exchange(lent_, false)) return;
  // The first call moves the thread, because it names one core; the second gives it its cores back.
  AllowOnly(home_);
  SetCores(thread_.native_handle(), allowed_);
}

bool PoolThread::AllowOnly(int cpu) {
  return SetCores(thread_.native_handle(), CoreSet().set(cpu));
}

}  // namespace qlora
