#include "data/packing.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"

namespace qlora {
namespace {

// Adds the groups of items [first, first + lengths.size()) to `groups`.
//
// The longest item that is left goes into the fullest bin that still has room for it, or opens a
// new one. Long items first, because short ones fill the gaps that long ones leave.
void PackWindow(std::span<const std::int32_t> lengths, std::uint32_t first, std::int64_t capacity,
                Groups& groups) {
  std::vector<std::uint32_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), 0U);
  // Stable, so that equal lengths are packed in their order on every platform.
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return lengths[a] > lengths[b]; });

  std::vector<std::vector<std::uint32_t>> bins;
  std::multimap<std::int64_t, std::int64_t> room;  // free tokens -> bin; equal keys: oldest first
  for (const std::uint32_t item : by_length) {
    QLORA_DCHECK(lengths[item] > 0 && lengths[item] <= capacity);
    // capacity 10, items 7 6 4 3:   bin 0 |7777777333|   3 fits exactly: the fullest bin with room
    //                               bin 1 |6666664444|
    // lower_bound finds the least room that is enough, in O(log bins).
    const auto best = room.lower_bound(lengths[item]);
    std::int64_t left = capacity;
    std::int64_t bin = std::ssize(bins);
    if (best == room.end()) {
      bins.emplace_back();
    } else {
      std::tie(left, bin) = *best;
      room.erase(best);
    }
    bins[bin].push_back(first + item);
    room.emplace(left - lengths[item], bin);
  }
  for (auto& bin : bins) std::sort(bin.begin(), bin.end());
  std::sort(bins.begin(), bins.end());  // by first item: no item is in two bins
  for (const auto& bin : bins) {
    groups.items.insert(groups.items.end(), bin.begin(), bin.end());
    groups.begin.push_back(groups.items.size());
  }
}

}  // namespace

std::span<const std::uint32_t> Groups::operator[](std::int64_t group) const {
  return std::span(items).subspan(begin[group], begin[group + 1] - begin[group]);
}

Groups PackBestFit(std::span<const std::int32_t> lengths, std::int64_t capacity,
                   std::int64_t window) {
  QLORA_DCHECK(window > 0);
  Groups groups;
  for (std::int64_t first = 0; first < std::ssize(lengths); first += window) {
    const std::int64_t count = std::min(window, std::ssize(lengths) - first);
    PackWindow(lengths.subspan(first, count), static_cast<std::uint32_t>(first), capacity, groups);
  }
  return groups;
}

Groups GroupEvenly(std::int64_t items, std::int64_t count) {
  QLORA_DCHECK(count > 0);
  Groups groups;
  groups.items.resize(items);
  std::iota(groups.items.begin(), groups.items.end(), 0U);
  for (std::int64_t end = count; end < items; end += count) groups.begin.push_back(end);
  if (items > 0) groups.begin.push_back(items);
  return groups;
}

}  // namespace qlora
