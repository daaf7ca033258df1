#include "qlora/context.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/simd_target.h"

namespace qlora {
namespace {

// Short enough that a waiting thread does not steal a busy machine's time slice, long enough that
// back-to-back kernels never pay for a wake-up.
constexpr int kSpins = 4000;

// The cgroup v2 CPU quota in whole cores, or a large number where there is none.
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

int UsableCores() {
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const int allowed =
      known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(allowed, QuotaCores()));
}

void Pause() { __builtin_ia32_pause(); }

}  // namespace

// A job is published by increasing generation_; workers and the caller then draw indices from
// next_ until it passes tasks_. The caller returns when every worker has left the job, so job
// fields are never written while somebody may read them.
class Context::Pool {
 public:
  explicit Pool(int threads) {
    for (int worker = 1; worker < threads; ++worker) {
      workers_.emplace_back([this, worker] { Work(worker); });
    }
  }

  ~Pool() {
    stop_.store(true, std::memory_order_relaxed);
    Publish();
    for (std::thread& t : workers_) t.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void Run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task) {
    if (workers_.empty() || tasks <= 1) {
      for (std::int64_t i = 0; i < tasks; ++i) task(i, 0);
      return;
    }
    task_ = &task;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    active_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    Publish();
    Drain(0);
    for (int spin = 0; int left = active_.load(std::memory_order_acquire); ++spin) {
      if (spin < kSpins) {
        Pause();
      } else {
        active_.wait(left, std::memory_order_acquire);
      }
    }
  }

 private:
  void Publish() {
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }

  void Drain(int worker) {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
      (*task_)(i, worker);
    }
  }

  void Work(int worker) {
    for (std::uint32_t seen = 0;;) {
      for (int spin = 0; generation_.load(std::memory_order_acquire) == seen; ++spin) {
        if (spin < kSpins) {
          Pause();
        } else {
          generation_.wait(seen, std::memory_order_acquire);
        }
      }
      ++seen;
      if (stop_.load(std::memory_order_relaxed)) return;
      Drain(worker);
      if (active_.fetch_sub(1, std::memory_order_release) == 1) active_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  const std::function<void(std::int64_t, int)>* task_ = nullptr;
  std::int64_t tasks_ = 0;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<int> active_{0};
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
};

Context::Context(int threads)
    : pool_(std::make_unique<Pool>(threads > 0 ? threads : UsableCores())) {
  ActiveSimdTarget();
}
Context::~Context() = default;

int Context::threads() const { return pool_->threads(); }

void Context::ParallelFor(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task) {
  pool_->Run(tasks, task);
}

}  // namespace qlora
