// A 4-bit weight times few rows by the matrix unit, without decoding the weight to memory.
//
// A byte of the weight holds columns 2i and 2i + 1, which is a register of the left operand of
// MmaBf16. So codes go from memory through a table of 256 pairs in shared memory to the matrix
// unit; the table is there once for each bank, so that no two lanes meet. Of a row and a block of
// 64 columns, lane t of four has the 8 bytes at 8 t:
//
//   lane t, product s = 0 ... 3:   columns 16 t + 4 s + {0, 1} and {2, 3}
//
// x is read in the same order of columns. The scale of the block multiplies the sum of its four
// products. Columns are split over blocks of threads, whose sums a second kernel adds in order.
#include <algorithm>

#include "backend/cuda/few_rows.h"
#include "backend/cuda/team.h"
#include "backend/cuda/weights.h"

namespace qlora::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kBlockThreads = kWarp * kWarps;
constexpr int kBlockRows = FewRowsCut::kBlockRows;
constexpr int kGroup = 64;  // columns with one scale
constexpr int kGroups = 4;  // of a step, one for each lane of a quad to find the scale of
constexpr int kStep = FewRowsCut::kStep;
static_assert(kBlockRows == 16 * kWarps && kStep == kGroup * kGroups);
constexpr int kPanelSteps = 4;  // of x in shared memory at a time
constexpr int kPanel = kPanelSteps * kStep;
// 8 bytes more than the columns: the rows of x that half a warp reads are in different banks.
constexpr int kPanelStride = kPanel + 4;
constexpr int kTableEntries = 256;

struct Split {
  std::int64_t row_blocks = 0;
  std::int64_t steps = 0;      // of all columns
  std::int64_t per_split = 0;  // steps
  std::int64_t splits = 0;
};
Split SplitOf(std::int64_t rows, std::int64_t cols) {
  Split s;
  s.row_blocks = BlockCount(rows, kBlockRows);
  s.steps = BlockCount(cols, kStep);
  // Rows alone make few blocks: O = 4096 gives 32. Parts of the columns fill the rest of the GPU,
  // but not for less than kLeastSteps of work, which has to pay for filling the table.
  const std::int64_t wanted = BlockCount(FewRowsCut::kBlocks, s.row_blocks);
  s.per_split = std::max(FewRowsCut::kLeastSteps, BlockCount(s.steps, wanted));
  s.splits = BlockCount(s.steps, s.per_split);
  return s;
}

// What a lane has of the 16 rows of its warp in one step: rows g and g + 8 with g = lane / 4.
struct Step {
  uint2 codes[2][kGroups];
  float scale[2];  // of group lane % 4
};

struct WarpRows {
  std::int64_t row[2];
  bool there[2];
};

GPU_INLINE Step LoadStep(const PackedWeight& w, const WarpRows& rows, std::int64_t col) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  Step step;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t first = rows.row[half] * w.q.cols + col;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      // Codes of groups beyond the columns are loaded as 0 instead of branching around the matrix
      // unit, all of whose lanes must take part.
      const bool there = rows.there[half] && col + group * kGroup < w.q.cols;
      const std::uint8_t* bytes = w.q.packed + (first + group * kGroup) / 2 + 8 * t;
      step.codes[half][group] = there ? *reinterpret_cast<const uint2*>(bytes) : make_uint2(0, 0);
    }
    // Codes that are not there have the scale 0.
    const bool there = rows.there[half] && col + t * kGroup < w.q.cols;
    step.scale[half] = there ? ScaleOf(w, Divide(first + t * kGroup, w.block)) : 0.0f;
  }
  return step;
}

// The pair of values of a byte of `word`: entry (byte, lane) of the table.
GPU_INLINE std::uint32_t PairOf(const std::uint32_t* table, std::uint32_t word, int byte) {
  return table[(word >> (8 * byte) & 0xff) * kWarp + threadIdx.x % kWarp];
}

template <int kTiles>
GPU_INLINE void AddStep(const Step& step, const std::uint32_t* table, const BFloat16* x,
                        float (&sum)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const BFloat16* mine = x + lane / 4 * kPanelStride + lane % 4 * 16;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    // Sums of one group start at 0, because its scale multiplies them before they join the sums of
    // others.
    float d[kTiles][4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint2 above = step.codes[0][group], below = step.codes[1][group];
      const std::uint32_t word0 = s < 2 ? above.x : above.y;
      const std::uint32_t word1 = s < 2 ? below.x : below.y;
      const int byte = s % 2 * 2;
      const std::uint32_t a[4] = {PairOf(table, word0, byte), PairOf(table, word1, byte),
                                  PairOf(table, word0, byte + 1), PairOf(table, word1, byte + 1)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint2 b = *reinterpret_cast<const uint2*>(mine + tile * 8 * kPanelStride +
                                                        group * kGroup + 4 * s);
        MmaBf16(d[tile], a, b.x, b.y);
      }
    }
    const float scale0 = __shfl_sync(kAllLanes, step.scale[0], lane / 4 * 4 + group);
    const float scale1 = __shfl_sync(kAllLanes, step.scale[1], lane / 4 * 4 + group);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      sum[tile][0] += scale0 * d[tile][0];
      sum[tile][1] += scale0 * d[tile][1];
      sum[tile][2] += scale1 * d[tile][2];
      sum[tile][3] += scale1 * d[tile][3];
    }
  }
}

// Columns [col, col + kPanel) of x in bfloat16; 0 outside of x.
template <int kTiles>
GPU_INLINE void FillPanel(const ConstMatrixView& x, std::int64_t col, BFloat16* panel) {
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kTiles * (kPanel / kChunk);
       i += kBlockThreads) {
    const int row = i / (kPanel / kChunk);
    const int at = i % (kPanel / kChunk) * kChunk;
    float v[kChunk] = {};
    if (row < x.rows && col + at < x.cols) Load(x, {row, col + at, kChunk}, v);
    uint2* to = reinterpret_cast<uint2*>(panel + row * kPanelStride + at);
    to[0] = make_uint2(PackBf16x2(v[0], v[1]), PackBf16x2(v[2], v[3]));
    to[1] = make_uint2(PackBf16x2(v[4], v[5]), PackBf16x2(v[6], v[7]));
  }
}

template <int kTiles>
struct Shared {
  std::uint32_t table[kTableEntries * kWarp];
  BFloat16 panel[8 * kTiles * kPanelStride];
};

// partial[split](n, o) for the rows o of this block of the weight; 8 kTiles rows n.
template <int kTiles>
__global__ void __launch_bounds__(kBlockThreads)
    FewRowsKernel(FewRows product, PackedWeight weight, int steps, int per_split) {
  GPU_DYNAMIC_SHARED(raw);
  auto* shared = reinterpret_cast<Shared<kTiles>*>(raw);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kBlockRows +
                                 static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4;
  WarpRows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.row[half] = first_row + 8 * half;
    rows.there[half] = rows.row[half] < weight.q.rows;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTableEntries * kWarp; i += kBlockThreads) {
    const int byte = i / kWarp;  // the first value in the high half
    // table[byte][lane]: 256 entries of 32 copies, 32 KiB; entry i is in bank i % 32 = lane.
    shared->table[i] = PackBf16x2(weight.q.code[byte >> 4], weight.q.code[byte & 15]);
  }

  const int begin = static_cast<int>(blockIdx.y) * per_split;
  const int end = begin + per_split < steps ? begin + per_split : steps;
  float sum[kTiles][4] = {};
  Step next = LoadStep(weight, rows, static_cast<std::int64_t>(begin) * kStep);
  for (int panel = begin; panel < end; panel += kPanelSteps) {
    __syncthreads();  // the panel before is not read any more
    FillPanel<kTiles>(product.x, static_cast<std::int64_t>(panel) * kStep, shared->panel);
    __syncthreads();
    const int panel_end = panel + kPanelSteps < end ? panel + kPanelSteps : end;
    for (int i = panel; i < panel_end; ++i) {
      const Step step = next;
      // Loads of the next step are on their way while the products of this step run.
      if (i + 1 < end) next = LoadStep(weight, rows, static_cast<std::int64_t>(i + 1) * kStep);
      AddStep<kTiles>(step, shared->table, shared->panel + (i - panel) * kStep, sum);
    }
  }
  const std::int64_t N = product.x.rows;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::int64_t n = 8 * tile + 2 * (lane % 4) + e % 2;
      if (n >= N || !rows.there[e / 2]) continue;
      product.partial[(blockIdx.y * N + n) * weight.q.rows + rows.row[e / 2]] = sum[tile][e];
    }
  }
}

// Adds the parts, the adapter and the bias.
__global__ void __launch_bounds__(kThreads)
    FinishFewRowsKernel(FewRows product, int splits, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  const std::int64_t N = product.y.rows, O = product.y.cols;
  float v[kChunk] = {}, part[kChunk], old[kChunk] = {};
  // In ascending order: the sum does not depend on which block of FewRowsKernel ended first.
  for (int split = 0; split < splits; ++split) {
    LoadChunk(product.partial + (split * N + c.row) * O + c.col, c.count, part);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] += part[i];
  }
  if (product.b.cols > 0) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i >= c.count) continue;
      float dot = 0;
      for (std::int64_t r = 0; r < product.b.cols; ++r) {
        dot += Float(product.u, c.row, r) * Float(product.b, c.col + i, r);
      }
      v[i] += product.scale * dot;
    }
  }
  if (product.bias.cols > 0) {
    Load(product.bias, {0, c.col, c.count}, part);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] += part[i];
  }
  if (product.store == Store::kAdd) LoadFrom(product.y, c, old);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v[i] += old[i];
  StoreTo(product.y, c, v);
}

template <int kTiles>
void LaunchFewRows(Stream stream, const FewRows& product, const Split& split) {
  const dim3 grid(static_cast<unsigned>(split.row_blocks), static_cast<unsigned>(split.splits));
  Launch("FewRows", FewRowsKernel<kTiles>, grid, kBlockThreads, sizeof(Shared<kTiles>), stream,
         product, PackedWeightOf(product.weight), split.steps, split.per_split);
}

}  // namespace

bool IsForFewRows(const WeightView& weight, std::int64_t rows) {
  const QuantizedView& q = weight.quantized;
  return !weight.is_dense() && rows <= kMostFewRows && q.cols % kGroup == 0 &&
         q.block_size % kGroup == 0 && reinterpret_cast<std::uintptr_t>(q.packed) % 8 == 0;
}

void Queue(Stream stream, const FewRows& product) {
  const Split split = SplitOf(product.weight.rows, product.weight.cols);
  if (product.x.rows <= 8) {
    LaunchFewRows<1>(stream, product, split);
  } else {
    LaunchFewRows<2>(stream, product, split);
  }
  const Tiling tiling = TilingOf(product.y.rows, product.y.cols);
  Launch("FinishFewRows", FinishFewRowsKernel, tiling.blocks(), kThreads, 0, stream, product,
         split.splits, tiling);
}

}  // namespace qlora::cuda
