// Grouping of short samples into micro-batches of nearly equal size.
#ifndef QLORA_DATA_PACKING_H_
#define QLORA_DATA_PACKING_H_

#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

// Groups of items, stored flat. An item is an example: samples that must share a micro-batch.
struct Groups {
  std::vector<std::uint32_t> items;        // every item exactly once
  std::vector<std::uint64_t> begin = {0};  // (groups + 1) first item of each group, then the end

  std::int64_t size() const { return static_cast<std::int64_t>(begin.size()) - 1; }
  std::span<const std::uint32_t> operator[](std::int64_t group) const;
};

// Puts every item into one group of at most `capacity` tokens: best fit, longest item first, within
// each run of `window` consecutive items. Items within a group, and groups by their first item, are
// in the order of `lengths`, so that a shuffled order stays shuffled. Needs 0 < length <= capacity.
// O(n log window), deterministic.
Groups PackBestFit(std::span<const std::int32_t> lengths, std::int64_t capacity,
                   std::int64_t window);

// Groups of `count` consecutive items; the last may be smaller.
Groups GroupEvenly(std::int64_t items, std::int64_t count);

}  // namespace qlora

#endif  // QLORA_DATA_PACKING_H_
