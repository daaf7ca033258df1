// 8-bit codes of frozen weights and of rows of activations, for products with sums of 32 bits.
// docs/math/eight-bit.md states the rule, which this folder is: codes here, products in products.h.
// Kernels compute the same bits.
//
// A code is a whole number of [-127, 127]: value = code * scale. A row of a weight has one scale,
// so that the codes serve both directions; a row of activations has one for each kGroup columns.
#ifndef QLORA_BACKEND_INT8_CODES_H_
#define QLORA_BACKEND_INT8_CODES_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "backend/weight.h"

namespace qlora::int8 {

// Columns along a sum with one scale of the activations. A sum of products of codes over them is
// below 2^21, so that float32 holds it.
inline constexpr std::int64_t kGroup = 128;
inline constexpr float kLargestCode = 127;

// As bits, which are in the order of magnitudes, with NaN above Inf above all numbers.
float LargestMagnitude(std::span<const float> values);

// code = value * inverse, rounded to the nearest whole number, even on a tie.
struct CodeScale {
  float scale = 0;
  float inverse = 0;  // 0: all codes are 0
};

// The scale by which `largest`, the largest magnitude, gets the largest code: 0 below 2^-100, where
// the inverse would overflow, and NaN for Inf and NaN.
inline CodeScale ScaleOfLargest(float largest) {
  constexpr float kSmallest = 0x1p-100f;
  if (!std::isfinite(largest)) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (largest < kSmallest) return {};
  return {largest / kLargestCode, kLargestCode / largest};
}

// ---- Weights.

// True for a weight whose products are computed in 8 bits: one that is quantized.
bool HasCodes(const WeightView& weight);

// The scale of a row of a weight. Of a 4-bit weight it leaves out blocks whose scale is above
// kMostOfMean times the mean of the row ("super weights"): codes of these are clamped.
inline constexpr double kMostOfMean = 8;
struct RowScale {
  CodeScale codes;
  bool clamps = false;
};

// The largest magnitude of a row.
float LargestOfRow(const WeightView& weight, std::int64_t row);

// The blocks with a scale that a row of a 4-bit weight touches, at most; 0 of other weights.
std::int64_t MostRowBlocks(const WeightView& weight);
// Writes their scales, of a 4-bit weight, and returns how many there are.
std::int64_t LoadRowScales(const QuantizedView& q, std::int64_t row, float* scales);

// block_scales (MostRowBlocks): becomes the scales of these blocks.
RowScale ScaleOfRow(const WeightView& weight, std::int64_t row, float* block_scales);

// Columns [col, col + cols) of a row.
void CodeRow(const WeightView& weight, std::int64_t row, const CodeScale& scale, std::int64_t col,
             std::int64_t cols, std::int8_t* codes);

// What a code lacks of its value where it would round beyond the largest; 0 of any other value.
// Columns as of CodeRow, of a 4-bit weight.
void ExcessOfRow(const WeightView& weight, std::int64_t row, const CodeScale& scale,
                 std::int64_t col, std::int64_t cols, float* excess);

// ---- Activations.

// The columns of a group that stay in float32, ascending: few values that hold the group, beside
// which the root mean square of the others' codes is under 3.
struct Spikes {
  static constexpr int kMost = 8;
  int count = 0;
  std::uint8_t columns[kMost] = {};
};

// A spike has a code of at least this magnitude, before its group is coded again without it.
inline constexpr int kSpikeCode = 32;

// Whether a group of `count` columns has spikes: `far` of its codes are that large, and the sum of
// the squares of the others is `squares`.
constexpr bool HasSpikes(std::int64_t count, int far, int squares) {
  constexpr int kMeanSquare = 8;
  return far <= Spikes::kMost && squares < kMeanSquare * (count - far);
}

// The codes of a group of at most kGroup values, and its scale. A spike has the code 0.
float CodeGroup(std::span<const float> values, std::int8_t* codes, Spikes& spikes);

}  // namespace qlora::int8

#endif  // QLORA_BACKEND_INT8_CODES_H_
