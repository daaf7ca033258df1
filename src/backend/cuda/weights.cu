// Frozen weights: decoded for products, and the lengths of their rows.
#include "backend/cuda/blas.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/row_reduce.h"
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

// The same for a part that DecodesWords. A thread has one chunk in each of four rows, each a word
// of the weight and 16 bytes of `out`, so that a warp reads 128 and writes 512 consecutive bytes.
constexpr int kDecodeRows = 4;
constexpr int kMapSize = 256;
static_assert(kMapSize == kThreads);

template <ScaleType kScales>
__global__ void __launch_bounds__(kThreads)
    DecodeWordsKernel(PackedWeight weight, std::uint32_t begin, MatrixView out, Tiling tiling) {
  GPU_SHARED(float, map, [kMapSize]);
  constexpr bool kDouble = kScales == ScaleType::kDoubleBnb;
  const QuantizedView& q = weight.q;
  const Chunk c = ChunkOf(tiling);
  const bool there = c.count > 0;
  const std::int64_t row = there ? c.row * kDecodeRows : 0;
  const std::int64_t col = there ? c.col : 0;
  const auto rows = static_cast<int>(min(out.rows - row, std::int64_t{kDecodeRows}));
  // All loads are on their way before the barrier, and none needs the value of another: the entry
  // of the map is looked up behind the barrier, in shared memory. Instead of branches, rows that
  // are not there are copies of the last, which are not stored.
  std::uint32_t words[kDecodeRows], scale_codes[kDecodeRows];
  float scales[kDecodeRows];
  const auto origin = begin + static_cast<std::uint32_t>(row * q.cols + col);
#pragma unroll
  for (int i = 0; i < kDecodeRows; ++i) {
    const auto at = static_cast<std::uint32_t>(min(i, rows - 1));
    const std::uint32_t first = origin + at * static_cast<std::uint32_t>(q.cols);
    const std::uint32_t block = first >> weight.block.shift;
    words[i] = *reinterpret_cast<const std::uint32_t*>(q.packed + first / 2);
    if constexpr (kDouble) {
      scale_codes[i] = static_cast<const std::uint8_t*>(q.scales)[block];
      scales[i] = q.nested.absmax[block >> weight.nested.shift];
    } else {
      scales[i] = static_cast<const float*>(q.scales)[block];
    }
  }
  if constexpr (kDouble) map[threadIdx.x] = q.nested.map[threadIdx.x];
  const float* code = LoadCode(q);  // with a barrier, for the map as well
  BFloat16* to = static_cast<BFloat16*>(out.data) + row * out.stride + col;
#pragma unroll
  for (int i = 0; i < kDecodeRows; ++i) {
    float scale = scales[i];
    if constexpr (kDouble) scale = NestedScale(q, map[scale_codes[i]], scale);
    float v[kChunk];
    DecodeWord(words[i], code, scale, v);
    if (there && i < rows) StoreVector(to + i * out.stride, v);
  }
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

bool DecodesWords(const WeightPart& part) {
  if (part.weight.form() != WeightForm::kFourBit) return false;
  const PackedWeight w = PackedWeightOf(part.weight.quantized);
  const bool shifts = w.block.magic == 0 && w.nested.magic == 0 && w.q.block_size >= kChunk;
  const bool words = w.q.cols % kChunk == 0 && part.col % kChunk == 0 &&
                     part.out.cols % kChunk == 0 &&
                     reinterpret_cast<std::uintptr_t>(w.q.packed) % 4 == 0;
  const bool counts = w.q.size() <= std::int64_t{1} << 32;
  return shifts && words && counts && part.out.dtype == DType::kBF16 && IsBlasOperand(part.out);
}

void DecodeWeight(Stream stream, const WeightPart& part) {
  const PackedWeight packed = PackedWeightOf(part.weight.quantized);
  if (DecodesWords(part)) {
    const std::int64_t rows = (part.out.rows + kDecodeRows - 1) / kDecodeRows;
    const Tiling fours = TilingOf(rows, part.out.cols);
    const auto begin = static_cast<std::uint32_t>(part.row * packed.q.cols + part.col);
    const bool is_double = packed.q.scale_type == ScaleType::kDoubleBnb;
    const auto kernel =
        is_double ? DecodeWordsKernel<ScaleType::kDoubleBnb> : DecodeWordsKernel<ScaleType::kF32>;
    Launch("DecodeWeight", kernel, fours.blocks(), kThreads, 0, stream, packed, begin, part.out,
           fours);
    return;
  }
  const Tiling tiling = TilingOf(part.out.rows, part.out.cols);
  if (part.weight.form() == WeightForm::kDense) {
    Launch("DecodeWeight", ConvertKernel, tiling.blocks(), kThreads, 0, stream,
           PartOf(part.weight.dense, part.row, part.col, part.out), part.out, tiling);
    return;
  }
  Launch("DecodeWeight", DecodeKernel, tiling.blocks(), kThreads, 0, stream, packed, part.row,
         part.col, part.out, tiling);
}

void Queue(Stream stream, const ops::RowNorms& op) {
  Launch(op.kName, RowNormsKernel, static_cast<unsigned>(op.weight.rows()), kThreads, 0, stream, op,
         PackedWeightOf(op.weight.quantized));
}

}  // namespace qlora::cuda
