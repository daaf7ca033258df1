#include "io/float_encoding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace qlora {
namespace {

constexpr int kBlock = static_cast<int>(kGgufBlock);

// The layout of the file; arrays of bytes, so that any address is aligned.
struct BlockQ8 {
  std::array<std::uint8_t, 2> d;
  std::array<std::int8_t, kBlock> q;
};
static_assert(sizeof(BlockQ8) == 34);

float ScaleOf(const std::array<std::uint8_t, 2>& d) {
  return ToFloat(Float16{static_cast<std::uint16_t>(d[0] | (d[1] << 8))});
}

// Returns the scale as it will be read.
float SetScale(float scale, std::array<std::uint8_t, 2>& d) {
  const Float16 half = ToFloat16(scale);
  d = {static_cast<std::uint8_t>(half.bits & 0xff), static_cast<std::uint8_t>(half.bits >> 8)};
  return ToFloat(half);
}

// Returns the nearest integer, half away from zero, for |x| < 2^31.
int Round(float x) {
  // Rounds as roundf, which ggml calls: nearbyint would round a half to even.
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

// Returns the first value of largest magnitude, with its sign.
float Largest(const float* x) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) {
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  }
  return largest;
}

// Returns 0 where the inverse is infinite: such a small scale is 0 as an f16.
float InverseOf(float scale) {
  const float inverse = 1 / scale;
  return std::isfinite(inverse) ? inverse : 0;
}

// Encodes with d = max |x| / 127, q = round(x / d), the division as a product with 1 / d. Returns
// false when d does not fit an f16.
bool EncodeQ8(const float* x, BlockQ8& block) {
  // ggml's quantize_row_q8_0: the inverse is taken of the float32 scale, before the scale is
  // rounded to f16, so files have the bits that llama.cpp writes.
  const float scale = std::abs(Largest(x)) / 127;
  const float inverse = InverseOf(scale);
  for (int i = 0; i < kBlock; ++i) block.q[i] = static_cast<std::int8_t>(Round(x[i] * inverse));
  return std::isfinite(SetScale(scale, block.d));
}

// If a scale does not fit an f16, the value to name is the largest of the block.
std::int64_t EncodeBlocksQ8(std::span<const float> values, std::span<std::byte> out) {
  for (std::int64_t b = 0; b < std::ssize(values) / kBlock; ++b) {
    const float* x = values.data() + b * kBlock;
    for (int i = 0; i < kBlock; ++i) {
      if (!std::isfinite(x[i])) return b * kBlock + i;
    }
    BlockQ8 block;
    // max |x| / 127 above 65504, the largest f16.
    if (!EncodeQ8(x, block)) return std::find(x, x + kBlock, Largest(x)) - values.data();
    std::memcpy(out.data() + b * sizeof(block), &block, sizeof(block));
  }
  return -1;
}

// A value that becomes Inf as Half is beyond its range.
template <typename Half>
std::int64_t EncodeHalves(std::span<const float> values, std::span<std::byte> out,
                          Half (*convert)(float)) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Half half = convert(values[i]);
    if (!std::isfinite(ToFloat(half))) return static_cast<std::int64_t>(i);
    std::memcpy(out.data() + i * sizeof(Half), &half, sizeof(Half));
  }
  return -1;
}

template <typename Half>
void DecodeHalves(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Half half;
    std::memcpy(&half, bytes.data() + i * sizeof(Half), sizeof(Half));
    out[i] = ToFloat(half);
  }
}

void DecodeBlocksQ8(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::int64_t b = 0; b < std::ssize(out) / kBlock; ++b) {
    BlockQ8 block;
    std::memcpy(&block, bytes.data() + b * sizeof(block), sizeof(block));
    const float scale = ScaleOf(block.d);
    for (int i = 0; i < kBlock; ++i) out[b * kBlock + i] = scale * block.q[i];
  }
}

}  // namespace

std::int64_t EncodeFloats(DType dtype, std::span<const float> values, std::span<std::byte> out) {
  QLORA_DCHECK(out.size() == BytesOf(dtype, values.size()));
  switch (dtype) {
    case DType::kF32: {
      const auto bad = std::find_if(values.begin(), values.end(),
                                    [](float value) { return !std::isfinite(value); });
      if (bad != values.end()) return bad - values.begin();
      std::memcpy(out.data(), values.data(), out.size());
      return -1;
    }
    case DType::kF16:
      return EncodeHalves<Float16>(values, out, ToFloat16);
    case DType::kBF16:
      return EncodeHalves<BFloat16>(values, out, ToBFloat16);
    case DType::kQ8_0:
      return EncodeBlocksQ8(values, out);
    default:
      ThrowInvalidInput("floats cannot be stored as {}", NameOf(dtype));
  }
}

void DecodeFloats(DType dtype, std::span<const std::byte> bytes, std::span<float> out) {
  QLORA_DCHECK(bytes.size() == BytesOf(dtype, out.size()));
  switch (dtype) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case DType::kF16:
      return DecodeHalves<Float16>(bytes, out);
    case DType::kBF16:
      return DecodeHalves<BFloat16>(bytes, out);
    case DType::kQ8_0:
      return DecodeBlocksQ8(bytes, out);
    default:
      ThrowInvalidInput("{} cannot be read as floats", NameOf(dtype));
  }
}

}  // namespace qlora
