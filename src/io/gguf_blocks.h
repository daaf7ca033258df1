// Values as float32 <-> values as GGUF stores them.
//
// Block types cut a row into blocks of 32 values; a block is an f16 scale d and 32 codes q:
//   Q8_0    34 bytes: d, 32 int8;     value = d * q
//   Q4_0    18 bytes: d, 16 bytes;    value = d * (q - 8)
//   IQ4_NL  18 bytes: d, 16 bytes;    value = d * kIq4NlCodebook[q]
// In the 4-bit types byte j holds code j in bits 3..0 and code j + 16 in bits 7..4.
#ifndef QLORA_IO_GGUF_BLOCKS_H_
#define QLORA_IO_GGUF_BLOCKS_H_

#include <array>
#include <cstdint>
#include <span>

#include "qlora/tensor.h"

namespace qlora {

inline constexpr std::int64_t kGgufBlock = 32;

inline constexpr std::array<std::int8_t, 16> kIq4NlCodebook = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Encodes values as F32, F16, BF16, Q8_0, Q4_0 or IQ4_NL; out has BytesOf(dtype, values.size())
// bytes, aligned or not. Q8_0 and Q4_0 give the bytes of llama.cpp's reference quantizers; IQ4_NL
// takes the scale of least squared error. Returns -1, or the index of a value that cannot be stored
// (NaN, infinite, beyond the range of f16); the output is then incomplete.
[[nodiscard]] std::int64_t EncodeFloats(DType dtype, std::span<const float> values,
                                        std::span<std::byte> out);

// The reverse: exact float32 products. bytes may be unaligned.
void DecodeFloats(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace qlora

#endif  // QLORA_IO_GGUF_BLOCKS_H_
