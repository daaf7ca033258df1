// The calls of a communicator, counted and timed, and the communicator of a job of one process.
#include "qlora/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/stopwatch.h"

namespace qlora {

class Communicator::Call {
 public:
  Call(Communicator& communicator, const char* name) : communicator_(communicator) {
    communicator.call_.store(name, std::memory_order_relaxed);
    communicator.calls_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Call() {
    communicator_.seconds_ += watch_.seconds();
    communicator_.call_.store("", std::memory_order_relaxed);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  Communicator& communicator_;
  Stopwatch watch_;
};

void Communicator::Exchange(std::span<const Bytes> to_each,
                            std::span<const MutableBytes> from_each) {
  const Call call(*this, "exchange");
  DoExchange(to_each, from_each);
}

void Communicator::Gather(Bytes mine, MutableBytes all) {
  const Call call(*this, "gather");
  DoGather(mine, all);
}

void Communicator::Broadcast(MutableBytes data, int root) {
  const Call call(*this, "broadcast");
  DoBroadcast(data, root);
}

void Communicator::SetHost(std::string host) {
  constexpr std::size_t kLongestName = 256;
  host_ = std::move(host);
  host_.resize(std::min(host_.size(), kLongestName));
  std::array<char, kLongestName> mine = {};
  std::copy(host_.begin(), host_.end(), mine.begin());
  std::vector<std::array<char, kLongestName>> all(static_cast<std::size_t>(size_));
  Gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  local_ranks_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) local_rank_ = local_size();
    if (all[rank] == mine) local_ranks_.push_back(rank);
  }
}

namespace {

class LoneProcess : public Communicator {
 public:
  LoneProcess() : Communicator(0, 1) {}
  [[noreturn]] void Abort(int code) override { _exit(code); }

 private:
  static void Copy(Bytes from, MutableBytes to) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }
  void DoExchange(std::span<const Bytes> to_each,
                  std::span<const MutableBytes> from_each) override {
    if (!from_each[0].empty()) Copy(to_each[0], from_each[0]);
  }
  void DoGather(Bytes mine, MutableBytes all) override { Copy(mine, all); }
  void DoBroadcast(MutableBytes /*data*/, int /*root*/) override {}
};

}  // namespace

std::unique_ptr<Communicator> MakeOneProcess() { return std::make_unique<LoneProcess>(); }

}  // namespace qlora
