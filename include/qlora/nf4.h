// 4-bit NormalFloat: codebooks, storage, quantization and dequantization.
//
// NF4 (Dettmers et al., "QLoRA", arXiv:2305.14314, appendix E) as bitsandbytes stores it: the
// row-major values are cut into blocks of block_size consecutive values; byte i of the packed data
// holds value 2i in bits 7..4 and value 2i+1 in bits 3..0; a value is code[nibble] * scale[block].
#ifndef QLORA_NF4_H_
#define QLORA_NF4_H_

#include <array>
#include <cstdint>

#include "qlora/tensor.h"

namespace qlora {

enum class QuantType : std::uint8_t { kNf4, kFp4 };

// How the scale of each block (its largest absolute value) is stored.
enum class ScaleType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kDoubleBnb,      // u8 code into a 256-entry map, times an f32 per 256 scales, plus a mean
  kDoubleTorchao,  // int8 divided by an f32 factor per scaler block, plus a mean
};

// The 16 NF4 values, float32, index = nibble. The only table of them in this project.
inline constexpr std::array<float, 16> kNf4Codebook = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// A borrowed 4-bit matrix (rows, cols): what kernels read. Blocks run along the row-major order
// and may cross row ends; the last block may be short.
struct QuantizedView {
  const std::uint8_t* packed = nullptr;  // (rows * cols + 1) / 2 bytes
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t block_size = 64;
  const float* code = nullptr;  // 16 values, index = nibble
  ScaleType scale_type = ScaleType::kF32;
  const void* scales = nullptr;  // one per block: f32, f16, bf16, u8 (bnb) or i8 (torchao)
  // Double quantization only; null and zero otherwise.
  const float* nested_code = nullptr;    // 256 values (bnb)
  const float* nested_scales = nullptr;  // one per nested_block_size scales
  std::int64_t nested_block_size = 256;
  float offset = 0;  // the mean that was subtracted from the scales

  std::int64_t blocks() const { return (rows * cols + block_size - 1) / block_size; }
};

// Writes the float32 scales of blocks [first, first + count) to out (count).
void LoadScales(const QuantizedView& q, std::int64_t first, std::int64_t count, float* out);

}  // namespace qlora

#endif  // QLORA_NF4_H_
