// Results: a float32 tile becomes part of an output matrix, rounded once.
#ifndef QLORA_BACKEND_CPU_GEMM_STORE_TILE_H_
#define QLORA_BACKEND_CPU_GEMM_STORE_TILE_H_

#include <cstdint>

#include "qlora/tensor.h"

namespace qlora::cpu {

// y(n, o) = tile(o, n) + bias[o] (bias may be null) [+ y(n, o)]
void StoreTransposed(const float* tile, std::int64_t tile_stride, const float* bias, bool add,
                     const MatrixView& y);
// y(n, i) = tile(n, i) [+ y(n, i)]
void StoreTile(const float* tile, std::int64_t tile_stride, bool add, const MatrixView& y);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_GEMM_STORE_TILE_H_
