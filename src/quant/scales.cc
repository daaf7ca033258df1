#include "quant/scales.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "quant/layout.h"
#include "quant/tables.h"

namespace qlora {
namespace {

constexpr std::int64_t kBlocksPerTask = 64;

// The mean in double, rounded once. Eight partial sums in a fixed order: quick, and independent of
// the number of threads.
float Mean(std::span<const float> values) {
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

// The code of x is the number of thresholds below it. They are the midpoints; where CUDA resolves a
// tie upward, to the even code, the float before the midpoint.
std::array<float, 255> MapThresholds(EncodeRule rule) {
  std::array<float, 255> out;
  for (std::size_t k = 0; k < out.size(); ++k) {
    const float midpoint = (kSignedDynamicMap[k] + kSignedDynamicMap[k + 1]) / 2;
    const bool up = rule == EncodeRule::kBnbCuda && k % 2 == 1;
    out[k] = up ? std::nextafter(midpoint, -1.0f) : midpoint;
  }
  return out;
}

// Finds map codes. A uniform grid over [-1, 1] leaves a handful of thresholds to compare.
class MapEncoder {
 public:
  explicit MapEncoder(EncodeRule rule) : thresholds_(MapThresholds(rule)) {
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

void EncodeBlockBnb(std::span<const float> scales, float mean, const MapEncoder& encode,
                    std::uint8_t* codes, float* nested_scale) {
  float largest = 0;
  for (const float scale : scales) largest = std::max(largest, std::fabs(scale - mean));
  *nested_scale = largest;
  const float factor = 1.0f / largest;
  if (!std::isfinite(factor)) {
    std::fill_n(codes, scales.size(), kDynamicMapZero);
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

float DoubleQuantizeBnb(Context* context, std::span<const float> scales, EncodeRule rule,
                        const NestedScales& out) {
  const float mean = Mean(scales);
  static const MapEncoder cpu(EncodeRule::kBnbCpu);
  static const MapEncoder cuda(EncodeRule::kBnbCuda);
  const MapEncoder& encode = rule == EncodeRule::kBnbCuda ? cuda : cpu;
  const auto n = static_cast<std::int64_t>(scales.size());
  const std::int64_t blocks = BlockCount(n, out.block);
  const auto encode_blocks = [&](std::int64_t task, int) {
    const std::int64_t end = std::min(blocks, (task + 1) * kBlocksPerTask);
    for (std::int64_t b = task * kBlocksPerTask; b < end; ++b) {
      const std::int64_t begin = b * out.block;
      const auto count = static_cast<std::size_t>(std::min(out.block, n - begin));
      EncodeBlockBnb(scales.subspan(begin, count), mean, encode, out.codes + begin,
                     out.nested_scales + b);
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

float DoubleQuantizeTorchao(std::span<const float> scales, DType arithmetic,
                            const NestedScales& out) {
  const auto round = [arithmetic](float value) { return RoundTo(arithmetic, value); };
  const float mean = round(Mean(scales));
  const auto n = static_cast<std::int64_t>(scales.size());
  for (std::int64_t begin = 0; begin < n; begin += out.block) {
    const auto block = scales.subspan(begin, std::min(out.block, n - begin));
    float largest = 0;
    for (const float s : block) largest = std::max(largest, std::fabs(round(s - mean)));
    float factor = round(256.0f / round(2 * largest));
    const bool equal = !std::isfinite(factor);
    if (equal) factor = 1;
    out.nested_scales[begin / out.block] = factor;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const float code = std::nearbyint(round(round(block[i] - mean) * factor));
      const auto bits = equal ? 0 : static_cast<std::int8_t>(std::clamp(code, -128.0f, 127.0f));
      out.codes[begin + static_cast<std::int64_t>(i)] = static_cast<std::uint8_t>(bits);
    }
  }
  return mean;
}

DoubleQuantizedScales DoubleQuantizeScales(std::span<const float> scales, ScaleType scheme,
                                           std::int64_t scaler_block_size, EncodeRule rule) {
  if (!IsDouble(scheme) || scaler_block_size < 1 || scales.empty()) {
    ThrowInvalidInput(
        "double quantization: expected kDoubleBnb or kDoubleTorchao, a scaler block of at least 1 "
        "and at least one scale, found a scaler block of {} and {} scales",
        scaler_block_size, scales.size());
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (!std::isfinite(scales[i])) {
      ThrowInvalidInput("double quantization: scale {} is {}, expected finite scales", i,
                        scales[i]);
    }
  }
  DoubleQuantizedScales result;
  result.codes.resize(scales.size());
  result.nested_scales.resize(
      static_cast<std::size_t>(BlockCount(std::ssize(scales), scaler_block_size)));
  const NestedScales out = {result.codes.data(), result.nested_scales.data(), scaler_block_size};
  result.offset = scheme == ScaleType::kDoubleBnb ? DoubleQuantizeBnb(nullptr, scales, rule, out)
                                                  : DoubleQuantizeTorchao(scales, DType::kF32, out);
  return result;
}

void DequantizeScales(std::span<const std::uint8_t> codes, std::span<const float> nested_scales,
                      float offset, ScaleType scheme, std::int64_t scaler_block_size,
                      std::span<float> out) {
  const std::int64_t n = std::ssize(out);
  if (!IsDouble(scheme) || scaler_block_size < 1 || codes.size() != out.size() ||
      std::ssize(nested_scales) != BlockCount(n, scaler_block_size)) {
    ThrowInvalidInput(
        "dequantize_scales: {} codes and {} nested scales do not belong to {} scales in blocks of "
        "{}",
        codes.size(), nested_scales.size(), n, scaler_block_size);
  }
  const QuantizedView q = {.scale_type = scheme,
                           .scales = codes.data(),
                           .nested_code = kSignedDynamicMap.data(),
                           .nested_scales = nested_scales.data(),
                           .nested_block_size = scaler_block_size,
                           .offset = offset};
  LoadScales(q, 0, n, out.data());
}

void LoadScales(const QuantizedView& q, std::int64_t first, std::int64_t count, float* out) {
  if (q.scale_type != ScaleType::kDoubleBnb) return LoadScaleColumns(q, first, 1, count, 1, out);
  // One nested block after the other, without a division per scale.
  const auto* codes = static_cast<const std::uint8_t*>(q.scales) + first;
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t block = (first + i) / q.nested_block_size;
    const std::int64_t end = std::min(count, (block + 1) * q.nested_block_size - first);
    LookUpScales(codes + i, end - i, q.nested_code, q.nested_scales[block], q.offset, out + i);
    i = end;
  }
}

void LoadScaleColumns(const QuantizedView& q, std::int64_t first, std::int64_t stride,
                      std::int64_t rows, std::int64_t cols, float* out) {
  const auto columns = [&](const auto& scale_of_block) {
    for (std::int64_t c = 0; c < cols; ++c) {
      for (std::int64_t r = 0; r < rows; ++r) {
        out[r * cols + c] = scale_of_block(first + c + r * stride);
      }
    }
  };
  switch (q.scale_type) {
    case ScaleType::kF32: {
      const auto* s = static_cast<const float*>(q.scales);
      return columns([&](std::int64_t i) { return s[i]; });
    }
    case ScaleType::kF16: {
      const auto* s = static_cast<const Float16*>(q.scales);
      return columns([&](std::int64_t i) { return ToFloat(s[i]); });
    }
    case ScaleType::kBF16: {
      const auto* s = static_cast<const BFloat16*>(q.scales);
      return columns([&](std::int64_t i) { return ToFloat(s[i]); });
    }
    case ScaleType::kDoubleBnb: {
      const auto* s = static_cast<const std::uint8_t*>(q.scales);
      for (std::int64_t c = 0; c < cols; ++c) {
        // Counted on from block to block, without a division per scale.
        std::int64_t i = first + c;
        std::int64_t block = i / q.nested_block_size;
        std::int64_t end = (block + 1) * q.nested_block_size;
        for (std::int64_t r = 0; r < rows; ++r, i += stride) {
          for (; i >= end; end += q.nested_block_size) ++block;
          out[r * cols + c] = q.nested_code[s[i]] * q.nested_scales[block] + q.offset;
        }
      }
      return;
    }
    case ScaleType::kDoubleTorchao: {
      const auto* s = static_cast<const std::int8_t*>(q.scales);
      return columns([&](std::int64_t i) {
        const float factor = q.nested_scales[i / q.nested_block_size];
        const float centered = RoundTo(q.scale_arithmetic, static_cast<float>(s[i]) / factor);
        return RoundTo(q.scale_arithmetic, centered + q.offset);
      });
    }
  }
}

}  // namespace qlora
