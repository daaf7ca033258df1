// Prepacked weights, see prepacked.h, where there is AVX512_VBMI; contracts of what stands in
// Kernels: kernels.h.
#ifndef QLORA_BACKEND_CPU_KERNELS_PREPACKED_H_
#define QLORA_BACKEND_CPU_KERNELS_PREPACKED_H_

#include "backend/cpu/kernels.h"

namespace qlora::cpu {

bool HasVbmi();

// The map of `nested_code` (256).
void PackScaleMap(const float* nested_code, std::byte* map);
// The panel of rows [row, row + kPrepackedRows) of q.
void PrepackPanel(const QuantizedView& q, std::int64_t row, std::byte* panel);

// Products in float32, of at most so many rows of x: their sums over a chunk fit into registers.
inline constexpr std::int64_t kPrepackedFloatBatch = 24;
void DotPrepacked(const PrepackedRows& in, const DotProduct& product);
void UnpackPanel(const PrepackedRows& in, std::int64_t chunk, std::int64_t chunks,
                 std::uint8_t* packed, float* scales);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_KERNELS_PREPACKED_H_
