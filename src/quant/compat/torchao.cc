#include "quant/compat/torchao.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/encode.h"

namespace qlora::compat {
namespace {

float RoundTo(DType dtype, float value) {
  if (dtype == DType::kBF16) return ToFloat(ToBFloat16(value));
  if (dtype == DType::kF16) return ToFloat(ToFloat16(value));
  return value;
}

// torchao writes the NF4 values down with four decimals.
std::array<float, 16> RoundedCodebook(DType dtype) {
  std::array<float, 16> out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto value = static_cast<float>(std::round(double{kNf4Codebook[i]} * 1e4) / 1e4);
    out[i] = RoundTo(dtype, value);
  }
  return out;
}

// The first code with the least |x - value|. x is NaN in a block of zeros, which makes every
// distance NaN and keeps code 0.
std::uint8_t NearestCode(const std::array<float, 16>& values, float x, DType dtype) {
  std::uint8_t code = 0;
  float least = std::numeric_limits<float>::infinity();
  for (std::uint8_t k = 0; k < values.size(); ++k) {
    // torchao subtracts in the type of the weight. Rounded to 8 bits, distances can be equal where
    // exact ones are not, and the first code wins: not the nearest one, but the one that torchao
    // stores.
    const float distance = std::fabs(RoundTo(dtype, x - values[k]));
    if (distance < least) {
      least = distance;
      code = k;
    }
  }
  return code;
}

}  // namespace

const std::array<float, 16>& TorchaoCodebook(DType dtype) {
  static const std::array<float, 16> f32 = RoundedCodebook(DType::kF32);
  static const std::array<float, 16> bf16 = RoundedCodebook(DType::kBF16);
  static const std::array<float, 16> f16 = RoundedCodebook(DType::kF16);
  return dtype == DType::kBF16 ? bf16 : dtype == DType::kF16 ? f16 : f32;
}

bool EncodeTorchao(const float* x, std::int64_t n, std::int64_t block_size, DType dtype,
                   std::int64_t first, std::uint8_t* packed, float* scales) {
  const std::array<float, 16>& values = TorchaoCodebook(dtype);
  for (std::int64_t begin = 0; begin < n; begin += block_size, ++scales) {
    const std::int64_t end = begin + std::min(block_size, n - begin);
    const std::uint32_t bits = MaxMagnitudeBits(x + begin, end - begin);
    if (bits >= kInfBits) return false;
    *scales = std::bit_cast<float>(bits);
    for (std::int64_t i = begin; i < end; ++i) {
      // Division, not a product with the reciprocal as in bitsandbytes: the two differ in the last
      // bit.
      PutNibble(packed, first + i, NearestCode(values, RoundTo(dtype, x[i] / *scales), dtype));
    }
  }
  return true;
}

// factor = 128 / max |c|, so that max |c| becomes 128, which is cut off to 127.
float DoubleQuantizeTorchao(std::span<const float> scales, DType arithmetic,
                            const ScaleCodes& out) {
  const auto round = [arithmetic](float value) { return RoundTo(arithmetic, value); };
  const float mean = round(MeanOf(scales));
  const std::int64_t n = std::ssize(scales);
  for (std::int64_t begin = 0; begin < n; begin += out.block) {
    const std::int64_t end = begin + std::min(out.block, n - begin);
    float largest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::fabs(round(scales[i] - mean)));
    }
    // 256 codes over the range [-max |c|, max |c|].
    float factor = round(256.0f / round(2 * largest));
    const bool equal = !std::isfinite(factor);
    // All scales of the block are (nearly) the mean: 0 times infinity would have no code.
    if (equal) factor = 1;
    out.nested[begin / out.block] = factor;
    for (std::int64_t i = begin; i < end; ++i) {
      const float code = std::nearbyint(round(round(scales[i] - mean) * factor));
      const auto bits = equal ? 0 : static_cast<std::int8_t>(std::clamp(code, -128.0f, 127.0f));
      out.codes[i] = static_cast<std::uint8_t>(bits);
    }
  }
  return mean;
}

float TorchaoScale(const View& q, std::int64_t block) {
  // Codes are signed, where codes of bitsandbytes are indices of a map.
  const auto code = static_cast<float>(static_cast<const std::int8_t*>(q.scales)[block]);
  const float centered =
      RoundTo(q.scale_arithmetic, code / q.nested.absmax[block / q.nested.block_size]);
  return RoundTo(q.scale_arithmetic, centered + q.nested.offset);
}

}  // namespace qlora::compat
