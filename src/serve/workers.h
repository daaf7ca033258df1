// A few threads that parse, render and tokenize, so that neither the engine nor the connections
// wait for that.
#ifndef QLORA_SERVE_WORKERS_H_
#define QLORA_SERVE_WORKERS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace qlora {

class Workers {
 public:
  explicit Workers(std::int64_t threads);
  ~Workers() { Finish(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Runs work, which does not throw, on one of the threads, in the order of calls.
  void Run(std::function<void()> work);
  // Finishes what is waiting, and ends the threads.
  void Finish();

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_WORKERS_H_
