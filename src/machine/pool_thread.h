// A thread of a pool, and the help that the waiting thread gives when it does not run.
//
// When another process takes a core, the system stops the thread there for milliseconds, in the
// middle of a task. The thread that waits for the task has an idle core meanwhile, too briefly for
// the system to move threads. So the waiting thread lends its core: the stopped thread ends its
// task there and then goes back, and may run on the cores that it was allowed before.
//
// A thread that waits for the disk or for a page does not run either, and is lent a core in vain.
// Where the cores of a process are widened later (a cpuset), a thread that was lent a core keeps to
// the cores that it knew.
#ifndef QLORA_MACHINE_POOL_THREAD_H_
#define QLORA_MACHINE_POOL_THREAD_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/cores.h"

namespace qlora {

// Once started, joined before it is destroyed.
class PoolThread {
 public:
  // Starts the thread, which calls `work` once. Throws std::thread's error if there is no thread.
  void Start(std::function<void()> work);
  // Waits for its end, if it was started.
  void Join();

  // The thread itself calls Enter and Leave, at the start and the end of work that others wait for.
  void Enter() { cpu_.store(CurrentCore(), std::memory_order_relaxed); }
  void Leave() { cpu_.store(kOutside, std::memory_order_relaxed); }

  // The waiting thread calls this from time to time. True if the thread has entered, has not run
  // since the last call, and may now run on the caller's core only: sleep, to let it run, and then
  // call ReturnCore.
  bool LendCore();

  // Sends a thread back that was lent a core; or on, if it shared the caller's core before.
  void ReturnCore();

 private:
  static constexpr int kOutside = -1;

  // Returns true when the system agreed.
  bool AllowOnly(int cpu);

  std::thread thread_;
  bool lent_ = false;
  std::chrono::nanoseconds time_run_{-1};  // at the last call of LendCore
  CoreSet allowed_;                        // before the thread was lent a core
  int home_ = 0;                           // where it goes afterwards
  alignas(64) std::atomic<int> cpu_{kOutside};
};

}  // namespace qlora

#endif  // QLORA_MACHINE_POOL_THREAD_H_
