// A thread of a pool, and what the one that waits for it can do when it does not run.
//
// When another process takes a core, the system puts the thread there aside for milliseconds, in
// the midst of a task, and whoever waits for that task has an idle core meanwhile, too briefly for
// the system to move threads. So the one that waits lends its core: the thread ends its task there
// and then goes back, with every core allowed that was allowed before.
#ifndef QLORA_BASE_POOL_THREAD_H_
#define QLORA_BASE_POOL_THREAD_H_

#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

namespace qlora {

class PoolThread {
 public:
  // number: 1, 2, ... in the pool. The thread calls `work` once. Throws std::system_error if the
  // system has no thread to give.
  void Start(int number, std::function<void()> work);
  // Waits for its end, if it was started.
  void Join();

  // By the thread itself: it starts and ends what others may wait for.
  void Enter() { cpu_.store(sched_getcpu(), std::memory_order_relaxed); }
  void Leave() { cpu_.store(kOutside, std::memory_order_relaxed); }

  // By the one that waits, from time to time. True if the thread has entered, has not run since the
  // call before, and may now run on the caller's core only: sleep, to let it, and then ReturnCore.
  bool LendCore();

  // Sends a thread back that was lent a core; on from the caller's core if they shared it before.
  void ReturnCore();

 private:
  static constexpr int kOutside = -1;

  // The time for which the thread has run, if the system says so.
  std::optional<std::chrono::nanoseconds> TimeRun();
  void Allow(const cpu_set_t& cpus);
  void AllowOnly(int cpu);
  // The allowed core that lies number_ further than `cpu`, in a circle.
  int CoreAfter(int cpu) const;

  std::thread thread_;
  int number_ = 0;
  bool lent_ = false;
  std::chrono::nanoseconds time_run_{-1};  // at the last call of LendCore
  cpu_set_t allowed_;                      // before the thread was lent a core
  int home_ = 0;                           // where it goes afterwards
  alignas(64) std::atomic<int> cpu_{kOutside};
};

}  // namespace qlora

#endif  // QLORA_BASE_POOL_THREAD_H_
