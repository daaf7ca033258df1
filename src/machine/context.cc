// The pool of threads behind Context. Idle workers spin a little before they sleep, because kernels
// follow each other within microseconds; the caller works as worker 0.
#include "qlora/context.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/cores.h"
#include "machine/pool_thread.h"
#include "machine/processor.h"
#include "machine/simd_target.h"
#include "qlora/communicator.h"

namespace qlora {
namespace {

// Short enough that a waiting thread does not steal a busy machine's time slice, long enough that
// back-to-back kernels never pay for a wake-up.
constexpr int kSpins = 4000;

// Spins between two looks at whether the workers that are waited for still run.
constexpr int kSpinsPerLook = 200;

// Returns the cgroup v2 CPU quota in whole cores, or a large number where there is no quota.
int QuotaCores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 16;
  try {
    return std::max(1, static_cast<int>(std::stod(quota) / period));
  } catch (const std::exception&) {
    return 1 << 16;
  }
}

// Returns the cores of the affinity mask; where that is not known, those that the machine has.
CoreSet AllowedCores() {
  if (const auto known = CoresOf(pthread_self())) return *known;
  CoreSet all;
  const std::size_t count = std::min<std::size_t>(std::thread::hardware_concurrency(), all.size());
  for (std::size_t core = 0; core < count; ++core) all.set(core);
  return all;
}

// Returns the cores that this process may use: the cores of its affinity mask, at most the quota.
int UsableCores() {
  return std::max(1, std::min(static_cast<int>(AllowedCores().count()), QuotaCores()));
}

// Returns the cores of this rank: a core that several ranks of its host may use counts in parts.
int ShareOfCores(Communicator& communicator) {
  if (communicator.is_alone()) return UsableCores();
  const CoreSet mine = AllowedCores();
  std::vector<CoreSet> all(static_cast<std::size_t>(communicator.size()));
  communicator.Gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  double share = 0;
  for (std::size_t core = 0; core < mine.size(); ++core) {
    if (!mine[core]) continue;
    const std::vector<int>& ranks = communicator.local_ranks();
    share += 1.0 / static_cast<double>(std::count_if(ranks.begin(), ranks.end(),
                                                     [&](int rank) { return all[rank][core]; }));
  }
  const int of_quota = QuotaCores() / communicator.local_size();
  return std::max(1, std::min(static_cast<int>(std::lround(share)), of_quota));
}

}  // namespace

// One job at a time. `gate_` says whether it may be entered and how many workers are inside; the
// caller opens it, works, closes it when no index is left, and returns when nobody is inside. A
// worker that the system has not scheduled meanwhile is never waited for: it finds the gate closed,
// or a later job. A worker that was put aside inside gets the caller's core. The fields of a job
// change only while the gate is closed and empty.
class Context::Pool {
 public:
  explicit Pool(int threads) : workers_(static_cast<std::size_t>(threads - 1)) {
    try {
      for (int worker = 1; worker < threads; ++worker) {
        Thread(worker).Start([this, worker] { Work(worker); });
      }
    } catch (const std::exception& error) {
      Stop();
      ThrowInvalidInput("{} threads cannot be started: {}; set fewer threads", threads,
                        error.what());
    }
  }

  ~Pool() { Stop(); }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs a single task, or a pool of one, in the caller without waking anyone.
  void Run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task) {
    if (workers_.empty() || tasks <= 1) {
      for (std::int64_t i = 0; i < tasks; ++i) task(i, 0);
      return;
    }
    task_ = &task;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    Open();
    Drain(0);
    std::uint32_t gate = gate_.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
    bool lent = false;
    for (int spin = 1; (gate & kInside) != 0; ++spin) {
      if (!lent && spin % kSpinsPerLook == 0) lent = LendCore();
      if (lent) spin = kSpins;  // no spinning: others need the core
      gate = Await(gate, spin);
    }
    if (lent) ReturnCore();
  }

 private:
  // The gate: a job number that wraps around, whether the job is open, and the workers inside.
  //   bit   31 ... 16   15     14 ... 0
  //         job         open   workers inside
  static constexpr std::uint32_t kInside = 0x7fff;
  static constexpr std::uint32_t kOpen = 0x8000;
  static constexpr std::uint32_t kJob = 0x10000;

  // Also after only some of the workers could be started.
  void Stop() {
    stop_.store(true, std::memory_order_relaxed);
    Open();
    for (PoolThread& thread : workers_) thread.Join();
  }

  // The fields of the job are written before the gate opens (release) and read after a worker has
  // entered (acquire).
  void Open() {
    const std::uint32_t job = gate_.load(std::memory_order_relaxed) / kJob + 1;
    gate_.store(job * kJob | kOpen, std::memory_order_release);
    gate_.notify_all();
  }

  // Returns the gate after a short wait in which it may have changed from `gate`.
  std::uint32_t Await(std::uint32_t gate, int spin) {
    if (spin < kSpins) {
      PauseSpin();
    } else {
      gate_.wait(gate, std::memory_order_acquire);
    }
    return gate_.load(std::memory_order_acquire);
  }

  // Takes indices one by one until none is left, so that a thread that runs slowly takes fewer.
  void Drain(int worker) {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
      (*task_)(i, worker);
    }
  }

  PoolThread& Thread(int worker) { return workers_[worker - 1]; }

  // Lends the caller's core to the workers inside that do not run. False if it lent no core.
  bool LendCore() {
    bool lent = false;
    for (PoolThread& thread : workers_) lent |= thread.LendCore();
    return lent;
  }

  void ReturnCore() {
    for (PoolThread& thread : workers_) thread.ReturnCore();
  }

  // Runs the loop of a worker: waits for an open gate of a job that it has not done, counts itself
  // in, works, counts itself out. The last one to leave a closed gate wakes the caller. A worker
  // enters a job once: when it leaves, no index is left.
  void Work(int worker) {
    PoolThread& thread = Thread(worker);
    std::uint32_t done = 0;  // number of the last job entered
    for (;;) {
      std::uint32_t gate = gate_.load(std::memory_order_acquire);
      for (int spin = 0; (gate & kOpen) == 0 || gate / kJob == done; ++spin) {
        if (stop_.load(std::memory_order_relaxed)) return;
        gate = Await(gate, spin);
      }
      // Fails when the gate was closed, or another worker entered, at the same moment.
      if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) continue;
      done = gate / kJob;
      thread.Enter();
      Drain(worker);
      thread.Leave();
      const std::uint32_t left = gate_.fetch_sub(1, std::memory_order_release) - 1;
      if ((left & (kOpen | kInside)) == 0) gate_.notify_all();
    }
  }

  std::vector<PoolThread> workers_;
  const std::function<void(std::int64_t, int)>* task_ = nullptr;
  std::int64_t tasks_ = 0;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::uint32_t> gate_{0};
  std::atomic<bool> stop_{false};
};

Context::Context(int threads)
    : pool_(std::make_unique<Pool>(threads > 0 ? threads : UsableCores())),
      one_process_(MakeOneProcess()),
      communicator_(one_process_.get()) {
  ActiveSimdTarget();
}

Context::Context(int threads, Communicator& communicator) : communicator_(&communicator) {
  const int share = ShareOfCores(communicator);  // a call of all ranks, whatever they were given
  pool_ = std::make_unique<Pool>(threads > 0 ? threads : share);
  ActiveSimdTarget();
}
Context::~Context() = default;

int Context::threads() const { return pool_->threads(); }

void Context::ParallelFor(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task) {
  pool_->Run(tasks, task);
}

}  // namespace qlora
