// The calls of a communicator, counted and timed, and the communicator of a job of one process.
#include "qlora/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/memory.h"
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

void Communicator::Exchange(std::span<const Bytes> to_each, std::span<const MutableBytes> from_each,
                            Memory& memory) {
  if (IsHost(memory)) return Exchange(to_each, from_each);
  const Call call(*this, "exchange");
  ExchangeCopies(to_each, from_each, memory);
}

void Communicator::ExchangeCopies(std::span<const Bytes> to_each,
                                  std::span<const MutableBytes> from_each, Memory& memory) {
  // Ranks may get the same slice.
  std::map<std::pair<const std::byte*, std::size_t>, HostBytes> leaving;
  std::vector<Bytes> to;
  for (const Bytes& slice : to_each) {
    const auto [copy, is_new] =
        leaving.try_emplace({slice.data(), slice.size()}, memory, slice.data(), slice.size());
    to.emplace_back(copy->second.data(), slice.size());
  }
  std::vector<std::vector<std::byte>> arriving;
  for (const MutableBytes& slice : from_each) arriving.emplace_back(slice.size());
  DoExchange(to, std::vector<MutableBytes>(arriving.begin(), arriving.end()));
  for (std::size_t rank = 0; rank < arriving.size(); ++rank) {
    if (arriving[rank].empty()) continue;
    memory.Upload(arriving[rank].data(), from_each[rank].data(), arriving[rank].size());
  }
}

void Communicator::Gather(Bytes mine, MutableBytes all) {
  const Call call(*this, "gather");
  DoGather(mine, all);
}

void Communicator::Broadcast(MutableBytes data, int root) {
  const Call call(*this, "broadcast");
  DoBroadcast(data, root);
}

void Communicator::DoGather(Bytes mine, MutableBytes all) {
  std::vector<MutableBytes> from_each;
  for (int from = 0; from < size_; ++from) {
    from_each.push_back(all.subspan(mine.size() * static_cast<std::size_t>(from), mine.size()));
  }
  DoExchange(std::vector<Bytes>(from_each.size(), mine), from_each);
}

void Communicator::DoBroadcast(MutableBytes data, int root) {
  std::vector<Bytes> to_each(static_cast<std::size_t>(size_));
  std::vector<MutableBytes> from_each(to_each.size());
  if (rank_ == root) {
    to_each.assign(to_each.size(), data);
  } else {
    from_each[root] = data;
  }
  DoExchange(to_each, from_each);
}

std::string Communicator::HostName() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
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
  LoneProcess() : Communicator(0, 1, "") {}
  [[noreturn]] void Abort(int code) override { _exit(code); }

 private:
  void DoExchange(std::span<const Bytes> to_each,
                  std::span<const MutableBytes> from_each) override {
    if (from_each[0].empty()) return;
    std::memcpy(from_each[0].data(), to_each[0].data(), from_each[0].size());
  }
};

}  // namespace

std::unique_ptr<Communicator> MakeOneProcess() { return std::make_unique<LoneProcess>(); }

}  // namespace qlora
