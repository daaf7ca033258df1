// The steps of Linear other than its products: dropout of the adapter's input, biases, conversions.
#include "backend/cuda/kernels.h"
#include "backend/cuda/philox.h"

namespace qlora::cuda {
namespace {

// The factors of a chunk: 0 where the element is dropped, otherwise 1 / (1 - dropout).
GPU_INLINE void MaskChunk(const DropMask& mask, const Chunk& c, float (&factor)[kChunk]) {
  const float kept = 1.0f / (1.0f - mask.dropout);
  // The place of the element in all of x, not in this part: however x is cut, forward and backward,
  // an element has one number of the generator and so one fate.
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
#pragma unroll
  // In float32, before v is rounded to the type of y.
  for (int i = 0; i < kChunk; ++i) v[i] *= mask.scale;
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

// Copies of one launch, each with blocks [first_block, the first of the next) of its tiling. An
// argument of a kernel, so of a fixed size.
constexpr int kMostCopies = 8;
struct CopyBatch {
  int count = 0;
  unsigned blocks = 0;
  unsigned first_block[kMostCopies];
  ScaledCopy copies[kMostCopies];
  Tiling tilings[kMostCopies];
};

__global__ void __launch_bounds__(kThreads) CopyAllKernel(CopyBatch batch) {
  int i = 0;
  while (i + 1 < batch.count && blockIdx.x >= batch.first_block[i + 1]) ++i;
  const Chunk c = ChunkOf(batch.tilings[i], blockIdx.x - batch.first_block[i]);
  if (c.count == 0) return;
  const ScaledCopy& copy = batch.copies[i];
  float v[kChunk] = {};
  if (copy.x.cols > 0) Load(copy.x, c, v);
#pragma unroll
  for (int k = 0; k < kChunk; ++k) v[k] *= copy.scale;
  StoreTo(copy.y, c, v);
}

// A thread for each row.
__global__ void __launch_bounds__(kThreads) BiasColumnsKernel(ConstMatrixView bias, MatrixView y) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= y.rows) return;
  const bool rounds = y.dtype == DType::kBF16;
  // Without a bias the two columns are the ones of the other operand: [1 1] [high low]^T = bias.
  float high = 1, low = 1;
  if (bias.cols > 0) {
    const float value = Float(bias, 0, row);
    // high + low has 16 bits of the bias, where bfloat16 alone has 8: the ones that multiply the
    // two columns are exact, so the product adds the bias almost as if it were float32.
    high = rounds ? Widen(Narrow(value)) : value;
    low = value - high;
  }
  if (rounds) {
    BFloat16* out = static_cast<BFloat16*>(y.data) + row * y.stride;
    out[0] = Narrow(high);
    out[1] = Narrow(low);
  } else {
    Float(y, row, 0) = high;
    Float(y, row, 1) = low;
  }
}

}  // namespace

void DropRows(Stream stream, const ConstMatrixView& x, const DropMask& mask, const MatrixView& y) {
  const Tiling tiling = TilingOf(y.rows, y.cols);
  Launch("DropRows", DropRowsKernel, tiling.blocks(), kThreads, 0, stream, x, mask, y, tiling);
}
void CopyAll(Stream stream, std::span<const ScaledCopy> copies) {
  CopyBatch batch = {};
  const auto launch = [&] {
    Launch("CopyAll", CopyAllKernel, batch.blocks, kThreads, 0, stream, batch);
    batch.count = 0;
    batch.blocks = 0;
  };
  for (const ScaledCopy& copy : copies) {
    if (copy.y.empty()) continue;
    const Tiling tiling = TilingOf(copy.y.rows, copy.y.cols);
    batch.first_block[batch.count] = batch.blocks;
    batch.copies[batch.count] = copy;
    batch.tilings[batch.count] = tiling;
    batch.blocks += tiling.blocks();
    if (++batch.count == kMostCopies) launch();
  }
  launch();
}
void AddDropped(Stream stream, const ConstMatrixView& x, const DropMask& mask,
                const MatrixView& y_acc) {
  const Tiling tiling = TilingOf(y_acc.rows, y_acc.cols);
  Launch("AddDropped", AddDroppedKernel, tiling.blocks(), kThreads, 0, stream, x, mask, y_acc,
         tiling);
}
void BiasColumns(Stream stream, const ConstMatrixView& bias, const MatrixView& y) {
  const auto blocks = static_cast<unsigned>((y.rows + kThreads - 1) / kThreads);
  Launch("BiasColumns", BiasColumnsKernel, blocks, kThreads, 0, stream, bias, y);
}

}  // namespace qlora::cuda
