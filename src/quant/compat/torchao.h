// torchao's NF4Tensor: its codebook, its encoder and its int8 scales. Every step of the arithmetic
// is rounded to the dtype of the weight.
#ifndef QLORA_QUANT_COMPAT_TORCHAO_H_
#define QLORA_QUANT_COMPAT_TORCHAO_H_

#include <cstdint>
#include <span>

#include "qlora/nf4_compat.h"
#include "quant/double_quant.h"

namespace qlora::compat {

// Encodes n values of `dtype`, widened to float32, in blocks of block_size: the first code with the
// least |x / absmax - value|. first and the result: as BlockEncoder::Encode.
bool EncodeTorchao(const float* x, std::int64_t n, std::int64_t block_size, DType dtype,
                   std::int64_t first, std::uint8_t* packed, float* scales);

// c = scale - mean; factor = 256 / (2 max |c|), stored in `nested`; code = round(c * factor) in
// [-128, 127]; each step rounded to `arithmetic`. Returns the mean. A block of equal scales (for
// which torchao's factor is infinite) has factor 1 and codes 0.
float DoubleQuantizeTorchao(std::span<const float> scales, DType arithmetic, const ScaleCodes& out);

// The scale of a block: code / factor + offset.
float TorchaoScale(const View& q, std::int64_t block);

}  // namespace qlora::compat

#endif  // QLORA_QUANT_COMPAT_TORCHAO_H_
