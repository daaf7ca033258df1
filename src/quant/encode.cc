#include "quant/encode.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "quant/layout.h"

namespace qlora {

template <typename T>
std::uint32_t MaxMagnitudeBits(const T* x, std::int64_t n) {
  // Without the sign, bits of floats order like their values, and NaN comes after Inf.
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(ToFloat(x[i])) & 0x7fffffff);
  }
  return largest;
}

// bitsandbytes' CPU code multiplies by 1 / absmax in whole blocks, with absmax at least 1e-38 so
// that the reciprocal stays finite, and divides in a short last block, of which it stores the
// limited absmax. Its CUDA code multiplies everywhere and flushes subnormal numbers to zero: a
// subnormal absmax would give 0 * inf, a reciprocal beyond 2^126 is 0.
Normalizer NormalizerOf(const EncodeTable& table, bool full, float* absmax) {
  Normalizer result;
  if (table.flush_to_zero) {
    constexpr float kLeastNormal = std::numeric_limits<float>::min();
    result.zero_block = *absmax < kLeastNormal;
    result.factor = 1.0f / *absmax;
    if (result.factor < kLeastNormal) result.factor = 0;
    return result;
  }
  result.zero_block = *absmax == 0;
  const float divisor = std::max(*absmax, kLeastDivisor);
  result.divide = !full;
  result.factor = full ? 1.0f / divisor : divisor;
  if (!full) *absmax = divisor;
  return result;
}

template <typename T>
void EncodeSpan(const T* x, std::int64_t n, const Normalizer& normalize, const EncodeTable& table,
                std::uint8_t* packed, std::int64_t first) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint8_t code = table.zero_block_code;
    if (!normalize.zero_block) {
      const float value = normalize(ToFloat(x[i]));
      int below = 0;
      // Strictly above: a value on a midpoint takes the lower neighbour, as in bitsandbytes.
      for (const float threshold : table.thresholds) below += value > threshold;
      code = table.codes[below];
    }
    PutNibble(packed, first + i, code);
  }
}

#define QLORA_INSTANTIATE(T)                                                              \
  template std::uint32_t MaxMagnitudeBits(const T*, std::int64_t);                        \
  template void EncodeSpan(const T*, std::int64_t, const Normalizer&, const EncodeTable&, \
                           std::uint8_t*, std::int64_t);
QLORA_INSTANTIATE(float)
QLORA_INSTANTIATE(BFloat16)
QLORA_INSTANTIATE(Float16)
#undef QLORA_INSTANTIATE

}  // namespace qlora
