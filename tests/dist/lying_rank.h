// A rank 0 of two whose other rank sends what a test chooses.
#ifndef QLORA_TESTS_DIST_LYING_RANK_H_
#define QLORA_TESTS_DIST_LYING_RANK_H_

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "qlora/communicator.h"

namespace qlora {

class LyingRank : public Communicator {
 public:
  // The other rank sends `bytes`, piece by piece as they are asked for, and then zeros. rank: of
  // this one.
  explicit LyingRank(std::string bytes, int rank = 0)
      : Communicator(rank, 2, "lies"), bytes_(std::move(bytes)) {}
  [[noreturn]] void Abort(int /*code*/) override { std::abort(); }

 private:
  void DoExchange(std::span<const Bytes> to_each,
                  std::span<const MutableBytes> from_each) override {
    for (int from = 0; from < size(); ++from) {
      const MutableBytes to = from_each[from];
      if (to.empty()) continue;
      if (from == rank()) {
        std::memcpy(to.data(), to_each[from].data(), to.size());
        continue;
      }
      const std::size_t count = std::min(to.size(), bytes_.size());
      std::memset(to.data(), 0, to.size());
      std::memcpy(to.data(), bytes_.data(), count);
      bytes_.erase(0, count);
    }
  }

  std::string bytes_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_DIST_LYING_RANK_H_
