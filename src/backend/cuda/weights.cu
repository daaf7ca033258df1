// Frozen weights: decoded for products, and the lengths of their rows.
#include "backend/cuda/kernels.h"
#include "backend/cuda/team.h"
#include "backend/cuda/weights.h"

namespace qlora::cuda {
namespace {

// The values of the 16 codes in shared memory. All threads of the block call it.
GPU_INLINE const float* LoadCode(const QuantizedView& q) {
  GPU_SHARED(float, code, [16]);
  // Lanes look up different codes: constant memory would serve them one after the other, shared
  // memory serves 16 addresses in 16 banks at once.
  if (threadIdx.x < 16) code[threadIdx.x] = q.code[threadIdx.x];
  __syncthreads();
  return code;
}

__global__ void __launch_bounds__(kThreads)
    DecodeKernel(PackedWeight weight, std::int64_t row, std::int64_t col, MatrixView out,
                 Tiling tiling) {
  const float* code = LoadCode(weight.q);
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  float v[kChunk];
  DecodeChunk(weight, code, (row + c.row) * weight.q.cols + col + c.col, c.count, v);
  StoreTo(out, c, v);
}

__global__ void __launch_bounds__(kThreads)
    ConvertKernel(ConstMatrixView weight, MatrixView out, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  float v[kChunk];
  LoadFrozen(weight, c, v);
  StoreTo(out, c, v);
}

// A block for each row of W + scale B A.
__global__ void __launch_bounds__(kThreads) RowNormsKernel(ops::RowNorms op, PackedWeight packed) {
  const Team team = TeamOf(kThreads);
  const bool dense = op.weight.dense.cols > 0;
  const float* code = dense ? nullptr : LoadCode(packed.q);
  const std::int64_t cols = dense ? op.weight.dense.cols : packed.q.cols;
  float sum = 0;
  ForChunks(team, cols, [&](const Chunk& c) {
    float v[kChunk], a[kChunk];
    if (dense) {
      LoadFrozen(op.weight.dense, c, v);
    } else {
      DecodeChunk(packed, code, c.row * cols + c.col, c.count, v);
    }
    // Row o of B A, formed chunk by chunk in registers: W + scale B A is never stored.
    for (std::int64_t r = 0; r < op.lora.a.rows; ++r) {
      const float factor = op.lora.scale * Float(op.lora.b, c.row, r);
      Load(op.lora.a, {r, c.col, c.count}, a);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v[i] += factor * a[i];
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += v[i] * v[i];
  });
  const float length = sqrtf(BlockJoin<kThreads>(sum, Plus()));
  if (team.rank != 0) return;
  if (op.norm.cols > 0) Float(op.norm, 0, team.row) = length;
  Float(op.inverse, 0, team.row) = length > 0 ? 1.0f / length : 0.0f;
}

ConstMatrixView PartOf(const ConstMatrixView& m, std::int64_t row, std::int64_t col,
                       const MatrixView& out) {
  // The stride of the whole weight stays: a part is a window, not a copy.
  const std::size_t at = BytesOf(m.dtype, row * m.stride + col);
  return {static_cast<const std::byte*>(m.data) + at, m.dtype, out.rows, out.cols, m.stride};
}

}  // namespace

void DecodeWeight(Stream stream, const WeightPart& part) {
  const Tiling tiling = TilingOf(part.out.rows, part.out.cols);
  if (part.weight.is_dense()) {
    Launch("DecodeWeight", ConvertKernel, tiling.blocks(), kThreads, 0, stream,
           PartOf(part.weight.dense, part.row, part.col, part.out), part.out, tiling);
    return;
  }
  Launch("DecodeWeight", DecodeKernel, tiling.blocks(), kThreads, 0, stream,
         PackedWeightOf(part.weight.quantized), part.row, part.col, part.out, tiling);
}

void Queue(Stream stream, const ops::RowNorms& op) {
  Launch(op.kName, RowNormsKernel, static_cast<unsigned>(op.weight.rows()), kThreads, 0, stream, op,
         PackedWeightOf(op.weight.quantized));
}

}  // namespace qlora::cuda
