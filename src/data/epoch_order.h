// The order in which an epoch visits the examples: a seeded permutation, or the order of the files.
#ifndef QLORA_DATA_EPOCH_ORDER_H_
#define QLORA_DATA_EPOCH_ORDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"

namespace qlora {

// Returns a permutation of 0 ... n-1 by Fisher and Yates, uniform up to the 2^-64 bias of
// RandomBelow; it depends on key and n alone. Errors: InvalidInput beyond 2^32 - 1 elements.
std::vector<std::uint32_t> Permutation(std::int64_t n, RandomKey key);

// Samples of one file: `samples` consecutive numbers, visited `weight` times per epoch.
struct OrderPart {
  std::int64_t samples = 0;
  double weight = 1;
  std::string file = {};  // for errors
};

// The rule for weights. With w = k + f, k whole and 0 <= f < 1, an epoch visits every sample of the
// file k times, and round(f * samples) of them once more. When not shuffling these are the first
// ones of the file. When shuffling they are drawn without replacement over epochs: one permutation
// of the file is walked through, round and round, so that no sample comes again before all others
// have come. Every epoch has the same number of visits.
class EpochOrder {
 public:
  // Errors: InvalidInput for a weight that is not positive and finite or that visits nothing.
  EpochOrder(const std::vector<OrderPart>& parts, bool shuffle, std::uint64_t seed);

  std::int64_t epoch_size() const { return epoch_size_; }

  // Returns the samples that `epoch` visits, in order; number 0 is the first sample of the first
  // part.
  std::vector<std::uint32_t> Epoch(std::int64_t epoch) const;

 private:
  struct Part {
    std::int64_t samples;
    std::int64_t copies;  // whole visits of every sample
    std::int64_t extra;   // samples visited once more
  };

  std::vector<std::uint32_t> Extra(std::int64_t part, std::int64_t epoch) const;

  std::vector<Part> parts_;
  bool shuffle_;
  std::uint64_t seed_;
  std::int64_t epoch_size_ = 0;
};

}  // namespace qlora

#endif  // QLORA_DATA_EPOCH_ORDER_H_
