// Values as float32 <-> values as tensors of files store them.
#ifndef QLORA_IO_FLOAT_ENCODING_H_
#define QLORA_IO_FLOAT_ENCODING_H_

#include <cstdint>
#include <span>

#include "io/tensor_type.h"

namespace qlora {

// Values that writers of tensors convert at a time, which bounds their memory.
inline constexpr std::int64_t kPieceValues = std::int64_t{1} << 20;

// Encodes values as F32, F16, BF16 or blocks; out has BytesOf(type, values.size()) bytes, aligned
// or not. importance: of each value, for blocks (EncodeBlocks), or null. Returns -1, or the index
// of a value that cannot be stored (NaN, infinite, beyond the range of the type); the output is
// then incomplete.
[[nodiscard]] std::int64_t EncodeFloats(TensorType type, std::span<const float> values,
                                        std::span<std::byte> out,
                                        const float* importance = nullptr);

// Decodes F32, F16, BF16 or blocks to the exact values, rounded once where float32 cannot hold
// them. bytes may be unaligned.
void DecodeFloats(TensorType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace qlora

#endif  // QLORA_IO_FLOAT_ENCODING_H_
