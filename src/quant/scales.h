// The second level: how the float32 scales of the blocks are stored.
#ifndef QLORA_QUANT_SCALES_H_
#define QLORA_QUANT_SCALES_H_

#include <cstdint>
#include <span>

#include "qlora/nf4.h"

namespace qlora {

// Destination of double quantization.
struct NestedScales {
  std::uint8_t* codes;   // (n)
  float* nested_scales;  // (ceil(n / block))
  std::int64_t block;    // scales per nested block
};

// bitsandbytes: v = scale - mean; per block A = max |v|; code = nearest entry of the dynamic map to
// v * (1 / A). Returns the mean. A block in which all v are 0 has A = 0 and the code of 0.
float DoubleQuantizeBnb(Context* context, std::span<const float> scales, EncodeRule rule,
                        const NestedScales& out);

// torchao: c = scale - mean; factor = 256 / (2 max |c|); code = round(c * factor) in [-128, 127];
// each step rounded to `arithmetic`. Returns the mean. A block of equal scales (for which torchao's
// factor is infinite) has factor 1 and codes 0.
float DoubleQuantizeTorchao(std::span<const float> scales, DType arithmetic,
                            const NestedScales& out);

// The scales of blocks first + r * stride + c: out(rows, cols).
void LoadScaleColumns(const QuantizedView& q, std::int64_t first, std::int64_t stride,
                      std::int64_t rows, std::int64_t cols, float* out);

}  // namespace qlora

#endif  // QLORA_QUANT_SCALES_H_
