#include "serve/workers.h"

#include <utility>

namespace qlora {

Workers::Workers(std::int64_t threads) {
  for (std::int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

void Workers::Finish() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Workers::Run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Workers::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    // What it holds goes before others are waited for.
    work = nullptr;
    lock.lock();
  }
}

}  // namespace qlora
