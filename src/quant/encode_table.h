// Decision tables: from a value, divided by the scale of its block, to its 4-bit code.
//
//   code(x) = codes[c],   c = the number of thresholds strictly below x
//
// A threshold is the float32 midpoint of two neighbouring values of the codebook, so c is the rank
// of the nearest value, and a tie goes to the lower one. The vector kernels find c for NF4 by one
// comparison, as explained at IsNearLine and ThresholdGrid.
#ifndef QLORA_QUANT_ENCODE_TABLE_H_
#define QLORA_QUANT_ENCODE_TABLE_H_

#include <array>
#include <cstdint>
#include <limits>

#include "qlora/nf4.h"

namespace qlora {

using Thresholds = std::array<float, 15>;        // ascending
using CodeOrder = std::array<std::uint8_t, 16>;  // codes by ascending value

inline constexpr CodeOrder kSortedNf4Codes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
// Zero occupies two places of FP4, both coded 0.
inline constexpr CodeOrder kSortedFp4Codes = {11, 10, 13, 12, 15, 14, 9, 0, 0, 1, 6, 7, 4, 5, 2, 3};

// Vectors of 8 lanes. The NF4 thresholds t[k] are so near a line that
//   k = floor(10 x + 7.25), cut off to [0, 14],
// is the number of thresholds below x or one less: x <= t[k] gives floor <= k, and x > t[k] gives
// floor >= k, because k <= 10 t[k] + 7.25 < k + 1 (checked here, with the rounding of the sum to
// 1/16; one side suffices at the ends), and rounding and cutting off keep order. So one comparison,
// with t[k], decides exactly.
inline constexpr float kLineSlope = 10.0f;
inline constexpr float kLineIntercept = 7.25f;
constexpr bool IsNearLine(const Thresholds& thresholds) {
  for (int k = 0; k < 15; ++k) {
    const double h = double{kLineSlope} * thresholds[k] + kLineIntercept;
    if (k > 0 && h - 1.0 / 32 < k) return false;
    if (k < 14 && h + 1.0 / 32 >= k + 1) return false;
  }
  return true;
}

// Vectors of 16 lanes. x in [-1, 1] (up to rounding) is in cell 15.4 x + 16, rounded, of 32. A
// cell holds one threshold at most, and rounding keeps order: thresholds of earlier cells are below
// x, thresholds of later cells are not, and one comparison decides exactly.
struct ThresholdGrid {
  static constexpr float kCellsPerUnit = 15.4f;
  alignas(64) std::array<float, 32> threshold{};     // of the cell, or infinity
  alignas(64) std::array<std::int32_t, 32> below{};  // thresholds in earlier cells
  bool exact = true;  // no two thresholds in a cell, none so near a border that rounding decides
};
constexpr ThresholdGrid MakeGrid(const Thresholds& thresholds) {
  ThresholdGrid grid;
  grid.threshold.fill(std::numeric_limits<float>::infinity());
  for (const float t : thresholds) {
    const double place = double{ThresholdGrid::kCellsPerUnit} * t + 16.5;
    const auto cell = static_cast<int>(place);
    const double within = place - cell;
    grid.exact &= within > 0.001 && within < 0.999;
    grid.exact &= grid.threshold[cell] == std::numeric_limits<float>::infinity();
    grid.threshold[cell] = t;
    for (int later = cell + 1; later < 32; ++later) ++grid.below[later];
  }
  return grid;
}

struct EncodeTable {
  Thresholds thresholds{};
  CodeOrder codes{};
  std::uint8_t zero_block_code = 0;  // of all values of a block without a scale
  // The arithmetic takes subnormal numbers for zero, and a short last block is not a special case
  // (see NormalizerOf).
  bool flush_to_zero = false;
  // One comparison decides, and the number of thresholds is the code: NF4.
  bool one_comparison = false;
  ThresholdGrid grid;
};

constexpr EncodeTable MakeEncodeTable(const Thresholds& thresholds, const CodeOrder& codes,
                                      std::uint8_t zero_block_code, bool flush_to_zero) {
  const ThresholdGrid grid = MakeGrid(thresholds);
  return {.thresholds = thresholds,
          .codes = codes,
          .zero_block_code = zero_block_code,
          .flush_to_zero = flush_to_zero,
          .one_comparison = IsNearLine(thresholds) && grid.exact && codes == kSortedNf4Codes,
          .grid = grid};
}

constexpr Thresholds Midpoints(const std::array<float, 16>& values, const CodeOrder& order) {
  Thresholds out{};
  for (std::size_t k = 0; k < out.size(); ++k) {
    out[k] = (values[order[k]] + values[order[k + 1]]) / 2;
  }
  return out;
}

// The rule of bitsandbytes' CPU code. Blocks of zeros take the code of 0.
inline constexpr EncodeTable kNf4Table =
    MakeEncodeTable(Midpoints(kNf4Codebook, kSortedNf4Codes), kSortedNf4Codes, 7, false);
inline constexpr EncodeTable kFp4Table =
    MakeEncodeTable(Midpoints(kFp4Codebook, kSortedFp4Codes), kSortedFp4Codes, 0, false);
static_assert(kNf4Table.one_comparison && !kFp4Table.one_comparison);

constexpr const EncodeTable& EncodeTableOf(QuantType type) {
  return type == QuantType::kFp4 ? kFp4Table : kNf4Table;
}

// The value of each code.
constexpr const float* CodebookOf(QuantType type) {
  return type == QuantType::kFp4 ? kFp4Codebook.data() : kNf4Codebook.data();
}

}  // namespace qlora

#endif  // QLORA_QUANT_ENCODE_TABLE_H_
