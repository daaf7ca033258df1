// Processes that run one job together: their numbers, and how bytes get from one to another.
#ifndef QLORA_COMMUNICATOR_H_
#define QLORA_COMMUNICATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace qlora {

class Memory;  // of the library: the memory of a device

// One rank of a job. Every rank makes the same calls in the same order, from one thread; a call
// returns when this rank's part of it is done. Calls move bytes and add nothing: the order of sums
// is that of the caller, on any number of ranks (step/gradient_tree.h). A rank that fails ends its
// process, and the engine ends the others.
class Communicator {
 public:
  using Bytes = std::span<const std::byte>;
  using MutableBytes = std::span<std::byte>;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }  // in [0, size)
  int size() const { return size_; }
  bool is_alone() const { return size_ == 1; }
  // The rank that prints, and writes the files of the job.
  bool is_root() const { return rank_ == 0; }
  // The ranks of this rank's host, ascending, and the place of this rank among them.
  const std::vector<int>& local_ranks() const { return local_ranks_; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return static_cast<int>(local_ranks_.size()); }
  const std::string& host() const { return host_; }
  // What moves the bytes: "mpi", "tcp"; "" for one process.
  const char* engine() const { return engine_; }

  // Sends to_each[r] to rank r and receives from_each[r] from it, both (size). What r sends here
  // has the size of from_each[r]. Nothing is sent or received where a slice is empty, so that only
  // ranks that have bytes for one another need to make the call. The slice for this rank is copied.
  void Exchange(std::span<const Bytes> to_each, std::span<const MutableBytes> from_each);
  // The same with slices in the memory of a device, over copies in host memory.
  void Exchange(std::span<const Bytes> to_each, std::span<const MutableBytes> from_each,
                Memory& memory);
  // Receives the bytes of each rank, all of them as many as `mine`, in the order of ranks.
  void Gather(Bytes mine, MutableBytes all);
  // Receives the bytes of `root`.
  void Broadcast(MutableBytes data, int root);
  // Ends all ranks with this exit code, without a word of its own.
  [[noreturn]] virtual void Abort(int code) = 0;

  // The seconds of the calls so far, waiting for others included.
  double seconds() const { return seconds_; }
  // How many calls began so far, and the name of the one that goes on ("" for none); for a thread
  // that looks whether the job still moves.
  std::int64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  const char* call() const { return call_.load(std::memory_order_relaxed); }

  // All ranks have met the same end, with the same message: the program ends each of them in order
  // and need not abort.
  void EndTogether() { ends_together_ = true; }
  bool ends_together() const { return ends_together_; }

 protected:
  Communicator(int rank, int size, const char* engine)
      : rank_(rank), size_(size), engine_(engine) {}
  // Gathers the names of hosts; called once, when an engine can move bytes.
  void SetHost(std::string host);
  // The name of this machine.
  static std::string HostName();

 private:
  class Call;  // counts and times a call
  virtual void DoExchange(std::span<const Bytes> to_each,
                          std::span<const MutableBytes> from_each) = 0;
  // By an exchange, where the engine has nothing better.
  virtual void DoGather(Bytes mine, MutableBytes all);
  virtual void DoBroadcast(MutableBytes data, int root);

  void ExchangeCopies(std::span<const Bytes> to_each, std::span<const MutableBytes> from_each,
                      Memory& memory);

  int rank_;
  int size_;
  const char* engine_;
  int local_rank_ = 0;
  std::vector<int> local_ranks_ = {0};
  std::string host_;
  double seconds_ = 0;
  std::atomic<std::int64_t> calls_ = 0;
  std::atomic<const char*> call_ = "";
  bool ends_together_ = false;
};

// The communicator of a job of one process.
std::unique_ptr<Communicator> MakeOneProcess();

}  // namespace qlora

#endif  // QLORA_COMMUNICATOR_H_
