#include "quant/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/layout.h"

namespace qlora {

template <typename T>
std::uint32_t MaxMagnitudeBits(const T* x, std::int64_t n, float shift) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(ToFloat(x[i]) - shift) & 0x7fffffff;
    largest = std::max(largest, bits);
  }
  return largest;
}

Normalizer NormalizerOf(EncodeRule rule, bool full, float shift, float* absmax) {
  Normalizer result;
  result.shift = shift;
  if (rule == EncodeRule::kBnbCuda) {
    // CUDA flushes subnormal numbers to zero: a subnormal absmax gives 0 * inf.
    result.zero_block = *absmax < std::numeric_limits<float>::min();
    result.factor = 1.0f / *absmax;
    if (result.factor < std::numeric_limits<float>::min()) result.factor = 0;
    return result;
  }
  result.zero_block = *absmax == 0;
  const float divisor = std::max(*absmax, 1e-38f);
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
      for (const float threshold : table.thresholds) below += value > threshold;
      code = table.codes[below];
    }
    PutNibble(packed, first + i, code);
  }
}

template <typename T>
void EncodeSpanTorchao(const T* x, std::int64_t n, float absmax, std::uint8_t* packed,
                       std::int64_t first) {
  constexpr DType dtype = kDTypeOf<T>;
  const auto& values = CodebookOf(QuantType::kNf4, EncodeRule::kTorchao, dtype);
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = RoundTo(dtype, ToFloat(x[i]) / absmax);
    std::uint8_t code = 0;
    float least = std::numeric_limits<float>::infinity();
    for (std::uint8_t k = 0; k < values.size(); ++k) {
      // A block of zeros makes every distance NaN and keeps code 0.
      const float distance = std::fabs(RoundTo(dtype, value - values[k]));
      if (distance < least) {
        least = distance;
        code = k;
      }
    }
    PutNibble(packed, first + i, code);
  }
}

#define QLORA_INSTANTIATE(T)                                                              \
  template std::uint32_t MaxMagnitudeBits(const T*, std::int64_t, float);                 \
  template void EncodeSpan(const T*, std::int64_t, const Normalizer&, const EncodeTable&, \
                           std::uint8_t*, std::int64_t);                                  \
  template void EncodeSpanTorchao(const T*, std::int64_t, float, std::uint8_t*, std::int64_t);
QLORA_INSTANTIATE(float)
QLORA_INSTANTIATE(BFloat16)
QLORA_INSTANTIATE(Float16)
#undef QLORA_INSTANTIATE

}  // namespace qlora
