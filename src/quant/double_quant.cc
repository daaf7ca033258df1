#include "quant/double_quant.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "quant/dynamic_map.h"

namespace qlora {
namespace {

constexpr std::int64_t kBlocksPerTask = 64;  // nested blocks

// The code of x is the number of thresholds strictly below it:
//   threshold[k] = (map[k] + map[k + 1]) / 2,
// so that a tie takes the lower code k. Where it shall take k + 1, because that is even, the
// threshold is the float before the midpoint.
std::array<float, 255> MapThresholds(MapTie tie) {
  const std::array<float, 256>& map = DynamicMap::Signed().values();
  std::array<float, 255> out;
  for (std::size_t k = 0; k < out.size(); ++k) {
    const float midpoint = (map[k] + map[k + 1]) / 2;
    const bool up = tie == MapTie::kEven && k % 2 == 1;
    out[k] = up ? std::nextafter(midpoint, -1.0f) : midpoint;
  }
  return out;
}

// Finds map codes: counts the thresholds below x. A uniform grid over [-1, 1] leaves a handful of
// thresholds to compare,
//   cell(x) = floor((x + 1) kCells / 2),   first[c] = the number of thresholds in cells before c.
class MapEncoder {
 public:
  explicit MapEncoder(MapTie tie) : thresholds_(MapThresholds(tie)) {
    for (std::size_t cell = 0, k = 0; cell <= kCells; ++cell) {
      while (k < thresholds_.size() && Cell(thresholds_[k]) < cell) ++k;
      first_[cell] = static_cast<std::uint8_t>(k);
    }
  }

  std::uint8_t operator()(float x) const {
    // Cell() does not decrease, so every threshold of an earlier cell is below x.
    std::size_t code = first_[Cell(x)];
    while (code < thresholds_.size() && thresholds_[code] < x) ++code;
    return static_cast<std::uint8_t>(code);
  }

 private:
  static constexpr std::size_t kCells = 4096;
  static std::size_t Cell(float x) {
    return static_cast<std::size_t>((std::clamp(x, -1.0f, 1.0f) + 1.0f) * (kCells / 2));
  }

  std::array<float, 255> thresholds_;
  std::array<std::uint8_t, kCells + 1> first_;
};

// One nested block. An A so small that 1 / A overflows counts as 0.
void EncodeNestedBlock(std::span<const float> scales, float mean, const MapEncoder& encode,
                       std::uint8_t* codes, float* nested_scale) {
  float largest = 0;
  for (const float scale : scales) largest = std::max(largest, std::fabs(scale - mean));
  *nested_scale = largest;
  const float factor = 1.0f / largest;
  if (!std::isfinite(factor)) {
    std::fill_n(codes, scales.size(), DynamicMap::kZero);
    return;
  }
  for (std::size_t i = 0; i < scales.size(); ++i) codes[i] = encode((scales[i] - mean) * factor);
}

// out[i] = code[stored[i]] * scale + offset. Nothing overlaps, so that the additions and
// multiplications are done in vectors.
void LookUpScales(const std::uint8_t* stored, std::int64_t count, const float* code, float scale,
                  float offset, float* __restrict out) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t codes;
    std::memcpy(&codes, stored + i, sizeof(codes));
    float values[8];
    for (int k = 0; k < 8; ++k) values[k] = code[codes >> (8 * k) & 0xff];
    for (int k = 0; k < 8; ++k) out[i + k] = values[k] * scale + offset;
  }
  for (; i < count; ++i) out[i] = code[stored[i]] * scale + offset;
}

}  // namespace

// Eight partial sums in a fixed order: quick, and independent of the number of threads.
float MeanOf(std::span<const float> values) {
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (std::size_t k = 0; k < 8; ++k) sums[k] += values[i + k];
  }
  for (; i < values.size(); ++i) sums[0] += values[i];
  double total = 0;
  for (const double sum : sums) total += sum;
  return static_cast<float>(total / static_cast<double>(values.size()));
}

// Scales are >= 0 and close to each other, so the rest after the mean is small and has both signs,
// and the map, dense near 0, is made for such values.
float DoubleQuantize(Context* context, std::span<const float> scales, MapTie tie,
                     const ScaleCodes& out) {
  // Made once: the grid of 4097 cells costs more than coding a small matrix.
  static const MapEncoder lower(MapTie::kLower);
  static const MapEncoder even(MapTie::kEven);
  const MapEncoder& encode = tie == MapTie::kEven ? even : lower;
  const float mean = MeanOf(scales);
  const std::int64_t n = std::ssize(scales);
  const std::int64_t blocks = BlockCount(n, out.block);
  const auto encode_blocks = [&](std::int64_t task, int) {
    const std::int64_t end = std::min(blocks, (task + 1) * kBlocksPerTask);
    for (std::int64_t b = task * kBlocksPerTask; b < end; ++b) {
      const std::int64_t begin = b * out.block;
      EncodeNestedBlock(scales.subspan(begin, std::min(out.block, n - begin)), mean, encode,
                        out.codes + begin, out.nested + b);
    }
  };
  const std::int64_t tasks = BlockCount(blocks, kBlocksPerTask);
  if (context != nullptr) {
    context->ParallelFor(tasks, encode_blocks);
  } else {
    for (std::int64_t task = 0; task < tasks; ++task) encode_blocks(task, 0);
  }
  return mean;
}

// scale[b] = map[code[b]] * absmax[b / block_size] + offset: one product and one sum, rounded each.
void LoadScales(const QuantizedView& q, std::int64_t first, std::int64_t count, float* out) {
  if (q.scale_type == ScaleType::kF32) {
    std::copy_n(static_cast<const float*>(q.scales) + first, count, out);
    return;
  }
  // One nested block after the other, without a division per scale.
  const auto* codes = static_cast<const std::uint8_t*>(q.scales) + first;
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t block = (first + i) / q.nested.block_size;
    const std::int64_t end = std::min(count, (block + 1) * q.nested.block_size - first);
    LookUpScales(codes + i, end - i, q.nested.map, q.nested.absmax[block], q.nested.offset,
                 out + i);
    i = end;
  }
}

void LoadScaleColumns(const QuantizedView& q, std::int64_t first, std::int64_t stride,
                      std::int64_t rows, std::int64_t cols, float* out) {
  for (std::int64_t c = 0; c < cols; ++c) {
    std::int64_t i = first + c;
    if (q.scale_type == ScaleType::kF32) {
      const auto* scales = static_cast<const float*>(q.scales);
      for (std::int64_t r = 0; r < rows; ++r, i += stride) out[r * cols + c] = scales[i];
      continue;
    }
    // The nested block is counted on from block to block, without a division per scale.
    const auto* codes = static_cast<const std::uint8_t*>(q.scales);
    std::int64_t block = i / q.nested.block_size;
    std::int64_t end = (block + 1) * q.nested.block_size;
    for (std::int64_t r = 0; r < rows; ++r, i += stride) {
      for (; i >= end; end += q.nested.block_size) ++block;
      out[r * cols + c] = q.nested.map[codes[i]] * q.nested.absmax[block] + q.nested.offset;
    }
  }
}

}  // namespace qlora
