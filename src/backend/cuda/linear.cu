// What Linear does beside its products: dropout of the adapter's input, biases, conversions.
#include "backend/cuda/kernels.h"
#include "backend/cuda/philox.h"

namespace qlora::cuda {
namespace {

// The factors of a chunk: 0 where the element is dropped, else 1 / (1 - dropout).
GPU_INLINE void MaskChunk(const DropMask& mask, const Chunk& c, float (&factor)[kChunk]) {
  const float kept = 1.0f / (1.0f - mask.dropout);
  const std::int64_t at = (mask.first_row + c.row) * mask.in_features + mask.first_col + c.col;
  UniformChunk(mask.key, static_cast<std::uint64_t>(at), factor);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) factor[i] = factor[i] < mask.dropout ? 0.0f : kept;
}

__global__ void __launch_bounds__(kThreads)
    DropRowsKernel(ConstMatrixView x, DropMask mask, MatrixView y, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  float v[kChunk], factor[kChunk];
  Load(x, c, v);
  if (mask.dropout > 0) {
    MaskChunk(mask, c, factor);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] *= factor[i];
  }
  StoreTo(y, c, v);
}

__global__ void __launch_bounds__(kThreads)
    AddDroppedKernel(ConstMatrixView x, DropMask mask, MatrixView y_acc, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  float v[kChunk], factor[kChunk], y[kChunk];
  Load(x, c, v);
  MaskChunk(mask, c, factor);
  LoadFrom(y_acc, c, y);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) y[i] += v[i] * factor[i];
  StoreTo(y_acc, c, y);
}

__global__ void __launch_bounds__(kThreads)
    AddBiasKernel(ConstMatrixView x, ConstMatrixView bias, MatrixView y, bool add, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  float v[kChunk], b[kChunk] = {}, old[kChunk] = {};
  Load(x, c, v);
  if (bias.cols > 0) Load(bias, {0, c.col, c.count}, b);
  if (add) LoadFrom(y, c, old);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v[i] = old[i] + (v[i] + b[i]);
  StoreTo(y, c, v);
}

}  // namespace

void DropRows(Stream stream, const ConstMatrixView& x, const DropMask& mask, const MatrixView& y) {
  const Tiling tiling = TilingOf(y.rows, y.cols);
  Launch("DropRows", DropRowsKernel, tiling.blocks(), kThreads, 0, stream, x, mask, y, tiling);
}
void AddDropped(Stream stream, const ConstMatrixView& x, const DropMask& mask,
                const MatrixView& y_acc) {
  const Tiling tiling = TilingOf(y_acc.rows, y_acc.cols);
  Launch("AddDropped", AddDroppedKernel, tiling.blocks(), kThreads, 0, stream, x, mask, y_acc,
         tiling);
}
void AddBias(Stream stream, const ConstMatrixView& x, const ConstMatrixView& bias,
             const MatrixView& y, Store store) {
  const Tiling tiling = TilingOf(y.rows, y.cols);
  Launch("AddBias", AddBiasKernel, tiling.blocks(), kThreads, 0, stream, x, bias, y,
         store == Store::kAdd, tiling);
}

}  // namespace qlora::cuda
