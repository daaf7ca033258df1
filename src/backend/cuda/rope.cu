// Rotary position embedding.
#include "backend/cuda/elements.h"
#include "backend/cuda/kernels.h"

namespace qlora::cuda {
namespace {

// The tiling is over (N * heads, K_rot / 2): a chunk is dims i ... i + 7 of one head, and the other
// halves of their pairs.
__global__ void __launch_bounds__(kThreads)
    RopeKernel(ops::Rope op, std::int64_t head_dim, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  const auto heads = static_cast<unsigned>(op.heads);
  const unsigned n = static_cast<unsigned>(c.row) / heads;
  const unsigned head = static_cast<unsigned>(c.row) - n * heads;
  const Chunk first = {n, head * head_dim + c.col, c.count};
  const Chunk second = {n, first.col + op.table.cos.cols, c.count};
  const Chunk angle = {op.positions.data[n], c.col, c.count};
  float cos[kChunk], sin[kChunk], x1[kChunk], x2[kChunk];
  Load(op.table.cos, angle, cos);
  Load(op.table.sin, angle, sin);
  LoadFrom(op.x_inout, first, x1);
  LoadFrom(op.x_inout, second, x2);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    // The inverse rotation is the gradient: the transpose of a rotation turns by the opposite
    // angle.
    const float s = op.inverse ? -sin[i] : sin[i];
    const float rotated = x1[i] * cos[i] - x2[i] * s;
    x2[i] = x2[i] * cos[i] + x1[i] * s;
    x1[i] = rotated;
  }
  StoreTo(op.x_inout, first, x1);
  StoreTo(op.x_inout, second, x2);
}

}  // namespace

void Queue(Stream stream, const ops::Rope& op) {
  const Tiling tiling = TilingOf(op.x_inout.rows * op.heads, op.table.cos.cols);
  Launch(op.kName, RopeKernel, tiling.blocks(), kThreads, 0, stream, op, op.x_inout.cols / op.heads,
         tiling);
}

}  // namespace qlora::cuda
