#include "data/epoch_order.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace qlora {
namespace {

// Part p >= 1 draws its extra samples, part 0 shuffles the epoch. 48 bits are free in a key.
RandomKey OrderKey(std::uint64_t seed, std::int64_t epoch, std::size_t part) {
  return MakeKey(seed, RandomPlace::kShuffle, (static_cast<std::uint64_t>(epoch) << 16) | part);
}

}  // namespace

std::vector<std::uint32_t> Permutation(std::int64_t n, RandomKey key) {
  if (n > std::numeric_limits<std::uint32_t>::max()) {
    ThrowInvalidInput("{} samples are more than one data set can hold (2^32 - 1)", n);
  }
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[RandomBelow(key, i - 1, i)]);
  }
  return order;
}

EpochOrder::EpochOrder(std::vector<OrderPart> parts, bool shuffle, std::uint64_t seed)
    : shuffle_(shuffle), seed_(seed) {
  if (parts.size() >= (1U << 16) - 1) ThrowInvalidInput("{} data files are too many", parts.size());
  for (const OrderPart& part : parts) {
    if (!std::isfinite(part.weight) || part.weight <= 0 || part.weight > 1e6) {
      ThrowInvalidInput("the weight of a data file must be above 0 and at most 1000000, found {}",
                        part.weight);
    }
    const double copies = std::floor(part.weight);
    const double extra = (part.weight - copies) * static_cast<double>(part.samples);
    parts_.push_back({part.samples, static_cast<std::int64_t>(copies), std::llround(extra)});
    const std::int64_t visits = parts_.back().copies * part.samples + parts_.back().extra;
    if (visits == 0 && part.samples > 0) {
      ThrowInvalidInput("a weight of {} takes none of the {} samples of a data file", part.weight,
                        part.samples);
    }
    epoch_size_ += visits;
  }
}

std::vector<std::uint32_t> EpochOrder::Epoch(std::int64_t epoch) const {
  std::vector<std::uint32_t> visits;
  visits.reserve(epoch_size_);
  std::int64_t first = 0;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    for (std::int64_t visit = 0; visit < part.copies * part.samples; ++visit) {
      visits.push_back(static_cast<std::uint32_t>(first + visit % part.samples));
    }
    if (part.extra > 0 && shuffle_) {
      const auto drawn = Permutation(part.samples, OrderKey(seed_, epoch, p + 1));
      for (std::int64_t i = 0; i < part.extra; ++i) {
        visits.push_back(static_cast<std::uint32_t>(first) + drawn[i]);
      }
    } else {
      for (std::int64_t i = 0; i < part.extra; ++i) {
        visits.push_back(static_cast<std::uint32_t>(first + i));
      }
    }
    first += part.samples;
  }
  if (!shuffle_) return visits;

  const auto order = Permutation(epoch_size_, OrderKey(seed_, epoch, 0));
  std::vector<std::uint32_t> shuffled(visits.size());
  for (std::size_t i = 0; i < shuffled.size(); ++i) shuffled[i] = visits[order[i]];
  return shuffled;
}

}  // namespace qlora
