// Values as float32 <-> values as tensors of files store them.
//
// Q8_0 cuts a row into blocks of 32 values. A block has 34 bytes: an f16 scale d and 32 int8 codes
// q; value = d * q.
#ifndef QLORA_IO_FLOAT_ENCODING_H_
#define QLORA_IO_FLOAT_ENCODING_H_

#include <cstdint>
#include <span>

#include "qlora/tensor.h"

namespace qlora {

inline constexpr std::int64_t kGgufBlock = 32;
// Values that writers of tensors convert at a time, which bounds their memory.
inline constexpr std::int64_t kPieceValues = std::int64_t{1} << 20;

// Encodes values as F32, F16, BF16 or Q8_0; out has BytesOf(dtype, values.size()) bytes, aligned or
// not. Q8_0 gives the bytes of llama.cpp's reference quantizer. Returns -1, or the index of a value
// that cannot be stored (NaN, infinite, beyond the range of f16); the output is then incomplete.
[[nodiscard]] std::int64_t EncodeFloats(DType dtype, std::span<const float> values,
                                        std::span<std::byte> out);

// Decodes to exact float32 products. bytes may be unaligned.
void DecodeFloats(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace qlora

#endif  // QLORA_IO_FLOAT_ENCODING_H_
