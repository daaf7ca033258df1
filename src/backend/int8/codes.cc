#include "backend/int8/codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/layout.h"

namespace qlora::int8 {
namespace {

// Of codes before they are clamped: from here on, they round beyond the largest code.
constexpr float kClamped = kLargestCode + 0.5f;

// Chains of a reduction, so that compilers can take vectors for it.
constexpr std::int64_t kChains = 16;

std::int8_t Rounded(float code) {
  return static_cast<std::int8_t>(std::lrint(std::clamp(code, -kLargestCode, kLargestCode)));
}

// Calls visit(index - first, scale) for the values [first, first + count) of a 4-bit weight, with
// the scale of their block.
template <typename Visit>
void ForEachValue(const QuantizedView& q, std::int64_t first, std::int64_t count,
                  const Visit& visit) {
  for (std::int64_t i = first; i < first + count;) {
    const std::int64_t block = BlockOfIndex(q, i);
    float scale;
    LoadScales(q, block, 1, &scale);
    const BlockRange range = RangeOfBlock(q, block);
    const std::int64_t end = std::min(first + count, range.begin + range.count);
    for (; i < end; ++i) visit(i - first, scale);
  }
}

// Calls visit(first - col, values) for pieces of columns [col, col + cols) of a row, decoded.
template <typename Visit>
void ForEachPiece(const WeightView& weight, std::int64_t row, std::int64_t col, std::int64_t cols,
                  const Visit& visit) {
  constexpr std::int64_t kPiece = 1024;
  float values[kPiece];
  for (std::int64_t i = 0; i < cols; i += kPiece) {
    const std::int64_t count = std::min(kPiece, cols - i);
    ReadRow(weight, row, col + i, count, values);
    visit(i, std::span<const float>(values, static_cast<std::size_t>(count)));
  }
}

// A value of 4 bits, as what its codebook says: the first of two is in the upper half of the byte.
float CodeValue(const QuantizedView& q, std::int64_t index) {
  const std::uint8_t byte = q.packed[index / 2];
  return q.code[index % 2 == 0 ? byte >> 4 : byte & 15];
}

// The largest of the scales of the blocks that a row touches, without those above kMostOfMean times
// their mean, unless nothing is left.
RowScale ScaleOfBlocks(const QuantizedView& q, std::int64_t row, float* scales) {
  const std::int64_t count = LoadRowScales(q, row, scales);
  const float largest = LargestMagnitude({scales, static_cast<std::size_t>(count)});
  const float of_code = LargestMagnitude({q.code, 16});
  const CodeScale all = ScaleOfLargest(largest * of_code);
  if (!std::isfinite(largest)) return {all};
  double sum = 0;
  for (std::int64_t b = 0; b < count; ++b) sum += std::abs(scales[b]);
  const double most = kMostOfMean * sum / static_cast<double>(count);
  float top = 0;
  for (std::int64_t b = 0; b < count; ++b) {
    const float scale = std::abs(scales[b]);
    if (scale <= most) top = std::max(top, scale);
  }
  const CodeScale others = ScaleOfLargest(top * of_code);
  if (top == largest || others.inverse == 0) return {all};
  return {others, true};
}

}  // namespace

float LargestMagnitude(std::span<const float> values) {
  const auto bits = [](float value) {
    return std::bit_cast<std::int32_t>(value) & std::numeric_limits<std::int32_t>::max();
  };
  std::array<std::int32_t, kChains> largest = {};
  std::int64_t i = 0;
  for (; i + kChains <= std::ssize(values); i += kChains) {
    for (std::int64_t c = 0; c < kChains; ++c) {
      const std::int32_t value = bits(values[i + c]);
      largest[c] = largest[c] < value ? value : largest[c];
    }
  }
  for (; i < std::ssize(values); ++i) largest[0] = std::max(largest[0], bits(values[i]));
  return std::bit_cast<float>(*std::ranges::max_element(largest));
}

bool HasCodes(const WeightView& weight) { return weight.form() != WeightForm::kDense; }

std::int64_t MostRowBlocks(const WeightView& weight) {
  if (weight.form() != WeightForm::kFourBit) return 0;
  return weight.cols() / weight.quantized.block_size + 2;
}

std::int64_t LoadRowScales(const QuantizedView& q, std::int64_t row, float* scales) {
  const std::int64_t first = BlockOfIndex(q, row * q.cols);
  const std::int64_t count = BlockOfIndex(q, row * q.cols + q.cols - 1) + 1 - first;
  LoadScales(q, first, count, scales);
  return count;
}

float LargestOfRow(const WeightView& weight, std::int64_t row) {
  float largest = 0;
  ForEachPiece(weight, row, 0, weight.cols(), [&](std::int64_t, std::span<const float> values) {
    const float of_both[] = {largest, LargestMagnitude(values)};
    largest = LargestMagnitude(of_both);
  });
  return largest;
}

RowScale ScaleOfRow(const WeightView& weight, std::int64_t row, float* block_scales) {
  if (weight.form() == WeightForm::kFourBit) {
    return ScaleOfBlocks(weight.quantized, row, block_scales);
  }
  return {ScaleOfLargest(LargestOfRow(weight, row))};
}

void CodeRow(const WeightView& weight, std::int64_t row, const CodeScale& scale, std::int64_t col,
             std::int64_t cols, std::int8_t* codes) {
  if (scale.inverse == 0) {
    std::fill_n(codes, cols, std::int8_t{0});
    return;
  }
  if (weight.form() == WeightForm::kFourBit) {
    const QuantizedView& q = weight.quantized;
    const std::int64_t first = row * q.cols + col;
    ForEachValue(q, first, cols, [&](std::int64_t i, float block) {
      codes[i] = Rounded(CodeValue(q, first + i) * (block * scale.inverse));
    });
    return;
  }
  ForEachPiece(weight, row, col, cols, [&](std::int64_t first, std::span<const float> values) {
    for (std::int64_t i = 0; i < std::ssize(values); ++i) {
      codes[first + i] = Rounded(values[i] * scale.inverse);
    }
  });
}

void ExcessOfRow(const WeightView& weight, std::int64_t row, const CodeScale& scale,
                 std::int64_t col, std::int64_t cols, float* excess) {
  const QuantizedView& q = weight.quantized;
  const std::int64_t first = row * q.cols + col;
  ForEachValue(q, first, cols, [&](std::int64_t i, float block) {
    const float value = CodeValue(q, first + i);
    const float code = value * (block * scale.inverse);
    const bool clamped = std::abs(code) >= kClamped;
    const float largest = std::copysign(kLargestCode, code);
    excess[i] = clamped ? std::fma(-largest, scale.scale, value * block) : 0;
  });
}

float CodeGroup(std::span<const float> values, std::int8_t* codes, Spikes& spikes) {
  const std::int64_t n = std::ssize(values);
  float rest[kGroup];
  std::ranges::copy(values, rest);
  spikes.count = 0;
  for (bool again = false;; again = true) {
    const CodeScale scale = ScaleOfLargest(LargestMagnitude({rest, values.size()}));
    std::fill_n(codes, n, std::int8_t{0});
    if (scale.inverse == 0) return scale.scale;
    int squares = 0;
    int far = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      codes[i] = Rounded(rest[i] * scale.inverse);
      const bool is_far = std::abs(codes[i]) >= kSpikeCode;
      far += is_far;
      squares += is_far ? 0 : codes[i] * codes[i];
    }
    if (again || !HasSpikes(n, far, squares)) return scale.scale;
    for (std::int64_t i = 0; i < n; ++i) {
      if (std::abs(codes[i]) < kSpikeCode) continue;
      spikes.columns[spikes.count++] = static_cast<std::uint8_t>(i);
      rest[i] = 0;
    }
  }
}

}  // namespace qlora::int8
