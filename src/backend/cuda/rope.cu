// Rotary position embedding.
#include "backend/cuda/elements.h"
#include "backend/cuda/kernels.h"

namespace qlora::cuda {
namespace {

// The two dims of each pair of a chunk.
struct Pairs {
  float x1[kChunk];
  float x2[kChunk];
};

// Pairs of dims i and i + half: two chunks. first: of the dims i.
GPU_INLINE Pairs LoadHalves(const MatrixView& m, const Chunk& first, std::int64_t half) {
  Pairs pairs;
  LoadFrom(m, first, pairs.x1);
  LoadFrom(m, {first.row, first.col + half, first.count}, pairs.x2);
  return pairs;
}
GPU_INLINE void StoreHalves(const MatrixView& m, const Chunk& first, std::int64_t half,
                            const Pairs& pairs) {
  StoreTo(m, first, pairs.x1);
  StoreTo(m, {first.row, first.col + half, first.count}, pairs.x2);
}

// Pairs of neighbours: the 2 * kChunk dims from `first` on, of which 2 * first.count exist.
GPU_INLINE Chunk LowerOf(const Chunk& first) {
  return {first.row, first.col, 2 * first.count < kChunk ? 2 * first.count : kChunk};
}
GPU_INLINE Chunk UpperOf(const Chunk& first) {
  return {first.row, first.col + kChunk, 2 * first.count - LowerOf(first).count};
}
GPU_INLINE Pairs LoadNeighbours(const MatrixView& m, const Chunk& first) {
  float lower[kChunk], upper[kChunk];
  LoadFrom(m, LowerOf(first), lower);
  if (UpperOf(first).count > 0) LoadFrom(m, UpperOf(first), upper);
  Pairs pairs;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float* const from = 2 * i < kChunk ? lower + 2 * i : upper + (2 * i - kChunk);
    pairs.x1[i] = from[0];
    pairs.x2[i] = from[1];
  }
  return pairs;
}
GPU_INLINE void StoreNeighbours(const MatrixView& m, const Chunk& first, const Pairs& pairs) {
  float lower[kChunk], upper[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float* const to = 2 * i < kChunk ? lower + 2 * i : upper + (2 * i - kChunk);
    to[0] = pairs.x1[i];
    to[1] = pairs.x2[i];
  }
  StoreTo(m, LowerOf(first), lower);
  if (UpperOf(first).count > 0) StoreTo(m, UpperOf(first), upper);
}

// The tiling is over (N * heads, K_rot / 2): a chunk is pairs i ... i + 7 of one head.
__global__ void __launch_bounds__(kThreads)
    RopeKernel(ops::Rope op, std::int64_t head_dim, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  const auto heads = static_cast<unsigned>(op.heads);
  const unsigned n = static_cast<unsigned>(c.row) / heads;
  const unsigned head = static_cast<unsigned>(c.row) - n * heads;
  const bool interleaved = op.table.interleaved;
  const std::int64_t half = op.table.cos.cols;
  const Chunk first = {n, head * head_dim + (interleaved ? 2 * c.col : c.col), c.count};
  const Chunk angle = {op.positions.data[n], c.col, c.count};
  float cos[kChunk], sin[kChunk];
  Load(op.table.cos, angle, cos);
  Load(op.table.sin, angle, sin);
  Pairs pairs =
      interleaved ? LoadNeighbours(op.x_inout, first) : LoadHalves(op.x_inout, first, half);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    // The inverse rotation is the gradient: the transpose of a rotation turns by the opposite
    // angle.
    const float s = op.inverse ? -sin[i] : sin[i];
    const float rotated = pairs.x1[i] * cos[i] - pairs.x2[i] * s;
    pairs.x2[i] = pairs.x2[i] * cos[i] + pairs.x1[i] * s;
    pairs.x1[i] = rotated;
  }
  if (interleaved) {
    StoreNeighbours(op.x_inout, first, pairs);
  } else {
    StoreHalves(op.x_inout, first, half, pairs);
  }
}

}  // namespace

void Queue(Stream stream, const ops::Rope& op) {
  const Tiling tiling = TilingOf(op.x_inout.rows * op.heads, op.table.cos.cols);
  Launch(op.kName, RopeKernel, tiling.blocks(), kThreads, 0, stream, op, op.x_inout.cols / op.heads,
         tiling);
}

}  // namespace qlora::cuda
