// Ranks as threads of one process, for tests: every message is copied, as an engine would.
#ifndef QLORA_TESTS_DIST_THREAD_RANKS_H_
#define QLORA_TESTS_DIST_THREAD_RANKS_H_

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "qlora/communicator.h"

namespace qlora {

// What the threads of a job share: messages on their way, by (from, to).
struct ThreadJob {
  explicit ThreadJob(int ranks) : size(ranks) {}

  int size;
  std::mutex mutex;
  std::condition_variable sent;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;
};

class ThreadRank : public Communicator {
 public:
  ThreadRank(ThreadJob& job, int rank, std::string host = "host")
      : Communicator(rank, job.size, "threads"), job_(job) {
    SetHost(std::move(host));
  }
  [[noreturn]] void Abort(int /*code*/) override { std::abort(); }

 private:
  void Send(Bytes data, int to) {
    const std::lock_guard lock(job_.mutex);
    job_.mail[{rank(), to}].emplace_back(data.begin(), data.end());
    job_.sent.notify_all();
  }
  void Receive(MutableBytes data, int from) {
    std::unique_lock lock(job_.mutex);
    auto& letters = job_.mail[{from, rank()}];
    job_.sent.wait(lock, [&] { return !letters.empty(); });
    if (letters.front().size() != data.size()) std::abort();  // two ranks disagree about a size
    std::memcpy(data.data(), letters.front().data(), data.size());
    letters.pop_front();
  }
  // Engines write what arrives while they still read what leaves.
  static bool Overlap(Bytes a, Bytes b) {
    return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
  }
  void DoExchange(std::span<const Bytes> to_each,
                  std::span<const MutableBytes> from_each) override {
    for (const Bytes& leaves : to_each) {
      for (const MutableBytes& arrives : from_each) {
        if (Overlap(leaves, arrives)) std::abort();
      }
    }
    for (int to = 0; to < size(); ++to) {
      const bool wanted = to != rank() || !from_each[to].empty();
      if (wanted && !to_each[to].empty()) Send(to_each[to], to);
    }
    for (int from = 0; from < size(); ++from) {
      if (!from_each[from].empty()) Receive(from_each[from], from);
    }
  }

  ThreadJob& job_;
};

// Runs work(rank) on `size` threads. Throws what the first rank that failed threw, when all have
// ended.
inline void OnThreads(int size, const std::function<void(int rank)>& work) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// The same with ranks that reach each other.
inline void OnRanks(int size, const std::function<void(Communicator&)>& work) {
  ThreadJob job(size);
  OnThreads(size, [&](int rank) {
    ThreadRank communicator(job, rank);
    work(communicator);
  });
}

}  // namespace qlora

#endif  // QLORA_TESTS_DIST_THREAD_RANKS_H_
