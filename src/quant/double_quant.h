// Double quantization: how the float32 scales of the blocks are coded in 8 bits, and read again.
#ifndef QLORA_QUANT_DOUBLE_QUANT_H_
#define QLORA_QUANT_DOUBLE_QUANT_H_

#include <cstdint>
#include <span>

#include "qlora/context.h"
#include "qlora/nf4.h"

namespace qlora {

// Destination of double quantization.
struct ScaleCodes {
  std::uint8_t* codes;  // (n)
  float* nested;        // (ceil(n / block)) one value per nested block
  std::int64_t block;   // scales per nested block
};

// The entry of the dynamic map that a scale takes half way between two entries.
enum class MapTie : std::uint8_t {
  kLower,  // bitsandbytes' CPU code
  kEven,   // its CUDA kernels: the entry with the even index
};

// v = scale - mean; per nested block A = max |v|, which is stored; code = the entry of the dynamic
// map that is nearest to v * (1 / A). Returns the mean. A block in which all v are 0 has A = 0 and
// the code of 0. Without a context, in the calling thread.
float DoubleQuantize(Context* context, std::span<const float> scales, MapTie tie,
                     const ScaleCodes& out);

// The mean of values (at least one), summed in double and rounded once.
float MeanOf(std::span<const float> values);

// The scales of blocks first + r * stride + c: out(rows, cols).
void LoadScaleColumns(const QuantizedView& q, std::int64_t first, std::int64_t stride,
                      std::int64_t rows, std::int64_t cols, float* out);

}  // namespace qlora

#endif  // QLORA_QUANT_DOUBLE_QUANT_H_
