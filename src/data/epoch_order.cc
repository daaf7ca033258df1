#include "data/epoch_order.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace qlora {
namespace {

constexpr double kMaxWeight = 1e6;
// More visits in an epoch than this, by repeating alone, are taken for a slip: the order of an
// epoch is kept in memory, and drawing it takes minutes.
constexpr std::int64_t kMostRepeated = 20'000'000;

// Draw 0 shuffles the epoch, draw p + 1 permutes the extra samples of part p. 48 bits are free in a
// key: 32 for the epoch, 16 for the draw.
RandomKey OrderKey(std::uint64_t seed, std::int64_t epoch, std::int64_t draw) {
  return MakeKey(seed, RandomPlace::kShuffle,
                 (static_cast<std::uint64_t>(epoch) << 16) | static_cast<std::uint64_t>(draw));
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

EpochOrder::EpochOrder(const std::vector<OrderPart>& parts, bool shuffle, std::uint64_t seed)
    : shuffle_(shuffle), seed_(seed) {
  if (parts.size() >= (1U << 16) - 1) ThrowInvalidInput("{} data files are too many", parts.size());
  for (const OrderPart& part : parts) {
    const std::string place = part.file.empty() ? "" : part.file + ": ";
    if (!std::isfinite(part.weight) || part.weight <= 0 || part.weight > kMaxWeight) {
      ThrowInvalidInput("{}the weight of a data file must be above 0 and at most {}, found {}",
                        place, kMaxWeight, part.weight);
    }
    const double copies = std::floor(part.weight);
    const double extra = (part.weight - copies) * static_cast<double>(part.samples);
    parts_.push_back({part.samples, static_cast<std::int64_t>(copies), std::llround(extra)});
    const std::int64_t visits = parts_.back().copies * part.samples + parts_.back().extra;
    if (visits == 0 && part.samples > 0) {
      ThrowInvalidInput("{}a weight of {} takes none of the {} samples of a data file", place,
                        part.weight, part.samples);
    }
    if (visits > kMostRepeated && visits / 100 > part.samples) {
      ThrowInvalidInput(
          "{}a weight of {} visits the {} samples of a data file {} times in an epoch, more than "
          "{}; write a smaller weight, and num_train_epochs for more passes",
          place, part.weight, part.samples, visits, kMostRepeated);
    }
    epoch_size_ += visits;
  }
}

// The walk through the permutation continues where the epoch before stopped:
//
//   permutation   c a e b d          5 samples, 2 extra visits per epoch
//   epoch 0       ^ ^
//   epoch 1           ^ ^
//   epoch 2       ^       ^
std::vector<std::uint32_t> EpochOrder::Extra(std::int64_t part, std::int64_t epoch) const {
  const auto [samples, copies, count] = parts_[part];
  std::vector<std::uint32_t> extra(count);
  if (count == 0) return extra;
  if (!shuffle_) {
    std::iota(extra.begin(), extra.end(), 0U);
    return extra;
  }
  const std::vector<std::uint32_t> walk = Permutation(samples, OrderKey(seed_, 0, part + 1));
  // Both factors are below 2^32, so the product fits 64 bits without a sign.
  const auto size = static_cast<std::uint64_t>(samples);
  const std::uint64_t begin =
      static_cast<std::uint64_t>(epoch) % size * static_cast<std::uint64_t>(count) % size;
  for (std::int64_t i = 0; i < count; ++i) extra[i] = walk[(begin + i) % size];
  return extra;
}

std::vector<std::uint32_t> EpochOrder::Epoch(std::int64_t epoch) const {
  std::vector<std::uint32_t> visits;
  visits.reserve(epoch_size_);
  std::uint32_t first = 0;  // sample of the part
  for (std::int64_t p = 0; p < std::ssize(parts_); ++p) {
    const Part& part = parts_[p];
    const auto samples = static_cast<std::uint32_t>(part.samples);
    for (std::int64_t copy = 0; copy < part.copies; ++copy) {
      for (std::uint32_t sample = 0; sample < samples; ++sample) visits.push_back(first + sample);
    }
    for (const std::uint32_t sample : Extra(p, epoch)) visits.push_back(first + sample);
    first += samples;
  }
  if (!shuffle_) return visits;

  const auto order = Permutation(epoch_size_, OrderKey(seed_, epoch, 0));
  std::vector<std::uint32_t> shuffled(visits.size());
  for (std::size_t i = 0; i < shuffled.size(); ++i) shuffled[i] = visits[order[i]];
  return shuffled;
}

}  // namespace qlora
