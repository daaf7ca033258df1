// Decoding of one block: the definition, in scalar code, of what the vector kernels compute.
#ifndef QLORA_QUANT_DECODE_H_
#define QLORA_QUANT_DECODE_H_

#include <array>
#include <cstdint>

#include "qlora/nf4.h"

namespace qlora {

// The 16 values of a block: code * scale, then + shift where the matrix has zero points.
inline std::array<float, 16> BlockValues(const float* code, float scale, const float* shift) {
  std::array<float, 16> values;
  for (std::size_t k = 0; k < values.size(); ++k) {
    values[k] = code[k] * scale;
    if (shift != nullptr) values[k] += *shift;
  }
  return values;
}

// out (n) = values of nibbles [first, first + n) of packed, rounded to T.
template <typename T>
void DecodeSpan(const std::uint8_t* packed, std::int64_t first, std::int64_t n,
                const std::array<float, 16>& values, T* out);

inline void Store(float value, float* out) { *out = value; }
inline void Store(float value, BFloat16* out) { *out = ToBFloat16(value); }
inline void Store(float value, Float16* out) { *out = ToFloat16(value); }

}  // namespace qlora

#endif  // QLORA_QUANT_DECODE_H_
