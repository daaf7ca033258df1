// The ops of DoRA on the columns of activations: scales, dot products, sums of squares.
#include "backend/cuda/kernels.h"
#include "backend/cuda/row_reduce.h"

namespace qlora::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    ScaleColumnsKernel(ops::ScaleColumns op, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  const Chunk of_row = {0, c.col, c.count};
  float x[kChunk], gain[kChunk], bias[kChunk] = {}, old[kChunk] = {};
  Load(op.x, c, x);
  Load(op.gain, of_row, gain);
  if (op.bias.cols > 0) Load(op.bias, of_row, bias);
  if (op.store == Store::kAdd) LoadFrom(op.y, c, old);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] = old[i] + (x[i] * gain[i] + bias[i]);
  StoreTo(op.y, c, x);
}

// A block for 32 columns: warp w adds rows w, w + 8, w + 16 ..., then the eight sums are added.
constexpr int kWarps = kThreads / kWarp;
__global__ void __launch_bounds__(kThreads) ColumnDotsKernel(ops::ColumnDots op) {
  GPU_SHARED(float, partial, [kWarps][kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  // Neighbouring lanes have neighbouring columns, so that a warp reads a row in whole lines. No
  // atomics: the order of each sum depends on the number of rows alone.
  float sum = 0;
  if (col < op.x.cols) {
    for (std::int64_t n = warp; n < op.x.rows; n += kWarps) {
      sum += Element(op.x, n, col) * Element(op.y, n, col);
    }
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || col >= op.x.cols) return;
  for (int w = 1; w < kWarps; ++w) sum += partial[w][lane];
  Float(op.dots, 0, col) = sum;
}

// One thread a column, because the order of the rows counts.
__global__ void __launch_bounds__(kThreads) ColumnSquaresKernel(ops::ColumnSquares op) {
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (col >= op.x.cols) return;
  double sum = static_cast<double*>(op.sums_acc.data)[col];
  for (std::int64_t n = 0; n < op.x.rows; ++n) {
    // The square of a float32 is exact in float64 (48 of 53 bits), so whether the compiler fuses
    // product and sum makes no difference: the CPU gets the same bits.
    const double value = static_cast<double>(Element(op.x, n, col));
    sum += value * value;
  }
  static_cast<double*>(op.sums_acc.data)[col] = sum;
}

unsigned BlocksFor(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace

void Queue(Stream stream, const ops::ScaleColumns& op) {
  const Tiling tiling = TilingOf(op.y.rows, op.y.cols);
  Launch(op.kName, ScaleColumnsKernel, tiling.blocks(), kThreads, 0, stream, op, tiling);
}
void Queue(Stream stream, const ops::ColumnDots& op) {
  Launch(op.kName, ColumnDotsKernel, BlocksFor(op.x.cols, kWarp), kThreads, 0, stream, op);
}
void Queue(Stream stream, const ops::ColumnSquares& op) {
  Launch(op.kName, ColumnSquaresKernel, BlocksFor(op.x.cols, kThreads), kThreads, 0, stream, op);
}

}  // namespace qlora::cuda
