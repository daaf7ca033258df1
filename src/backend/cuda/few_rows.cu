// 4-bit weights times few rows by the matrix unit, without decoding them to memory.
//
// A byte of a weight holds columns 2i and 2i + 1, which is a register of the left operand of
// MmaBf16. So codes go from memory through a table of 256 pairs in shared memory to the matrix
// unit; the table is there once for each bank, so that no two lanes meet. Of a row and a block of
// 64 columns, lane t of four has the 8 bytes at 8 t:
//
//   lane t, product s = 0 ... 3:   columns 16 t + 4 s + {0, 1} and {2, 3}
//
// x is read in the same order of columns: 32 bytes of a row for each lane. The scale of the block
// multiplies the sum of its four products.
//
// A block of threads works on 16 rows of a weight at a time. Warp w has the columns of steps w, w +
// 8, w + 16 ..., and the sums of the eight warps are added in order, so a result depends neither on
// the number of blocks nor on the other rows of x. The linears of a group are one launch
// for every 32 rows.
#include <algorithm>
#include <bit>

#include "backend/cuda/few_rows.h"
#include "backend/cuda/row_reduce.h"
#include "backend/cuda/weights.h"

namespace qlora::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kBlockThreads = kWarp * kWarps;
constexpr int kTileRows = 16;  // of a weight, as many as a product of the matrix unit has
constexpr int kGroup = 64;     // columns with one scale
constexpr int kGroups = 4;     // of a step, one for each lane of a quad to fetch the scale of
constexpr int kStep = kGroup * kGroups;
constexpr int kTableEntries = 256;
static_assert(kTableEntries == kBlockThreads);

struct Member {
  PackedWeight weight;   // (O, I)
  ConstMatrixView bias;  // (1, O) or empty
  ConstMatrixView b;     // (O, R) float32
  float scale = 0;
  MatrixView u;        // (N, R) float32
  MatrixView y;        // (N, O)
  int first_tile = 0;  // of all tiles of the group
};
// Linears that read the same x. An argument of a kernel, so of a fixed size.
constexpr int kMostMembers = 4;
struct Group {
  ConstMatrixView x;  // (N, I)
  Store store = Store::kSet;
  int count = 0;
  int steps = 0;  // of I columns
  int tiles = 0;
  Member members[kMostMembers] = {};
};

struct Tile {
  int member = 0;
  int row = 0;  // the first of kTileRows
};
GPU_INLINE Tile TileOf(const Group& group, int tile) {
  int member = 0;
  while (member + 1 < group.count && tile >= group.members[member + 1].first_tile) ++member;
  return {member, (tile - group.members[member].first_tile) * kTileRows};
}

// Rows and columns beyond the weight or beyond x are read from a place within, instead of a branch
// around the matrix unit, all of whose lanes must take part: rows that are not there are copies of
// the last one, whose sums are not stored; groups of columns that are not there are the first of
// their step, with the scale 0.

// The rows of a tile that a lane reads: g and g + 8 with g = lane / 4. Elements are counted in 32
// bits (IsForFewRows), so that indices are one register.
struct LaneRows {
  int member = 0;
  std::uint32_t first[2] = {};  // elements before the row
};
GPU_INLINE LaneRows LaneRowsOf(const Group& group, const Tile& tile) {
  const QuantizedView& q = group.members[tile.member].weight.q;
  LaneRows rows = {tile.member};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = tile.row + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * half;
    rows.first[half] = static_cast<std::uint32_t>((row < q.rows ? row : q.rows - 1) * q.cols);
  }
  return rows;
}

// Groups of columns that are left from step `at` on.
GPU_INLINE int GroupsFrom(const Group& group, int at) {
  return static_cast<int>(group.x.cols) / kGroup - at * kGroups;
}

// The codes and scales of a lane's rows in one step. Scales of group lane % 4 are fetched as they
// are stored and found when they are needed: a look-up here would wait for the code of the scale,
// and with it for all loads.
struct Step {
  uint2 codes[2][kGroups];
  std::uint32_t scale_code[2];
  float scale[2];  // float32 scales, or the scales of the nested blocks
};

GPU_INLINE Step LoadStep(const Group& group, const LaneRows& rows, int at) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const PackedWeight& w = group.members[rows.member].weight;
  const int groups = GroupsFrom(group, at);
  Step step = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t first = rows.first[half] + static_cast<unsigned>(at * kStep);
    const std::uint8_t* bytes = w.q.packed + first / 2 + 8 * (lane % 4);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int begin = i < groups ? i * kGroup : 0;
      step.codes[half][i] = __ldcs(reinterpret_cast<const uint2*>(bytes + begin / 2));
    }
    const int begin = lane % 4 < groups ? lane % 4 * kGroup : 0;
    const std::uint32_t block = (first + static_cast<unsigned>(begin)) >> w.block.shift;
    if (w.q.scale_type == ScaleType::kF32) {
      step.scale[half] = static_cast<const float*>(w.q.scales)[block];
    } else {
      step.scale_code[half] = static_cast<const std::uint8_t*>(w.q.scales)[block];
      step.scale[half] = w.q.nested.absmax[Divide(block, w.nested)];
    }
  }
  return step;
}

// The scales of the two rows in group lane % 4.
GPU_INLINE void FindScales(const QuantizedView& q, const Step& step, int groups, const float* map,
                           float (&scale)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    scale[half] = step.scale[half];
    if (q.scale_type == ScaleType::kDoubleBnb) {
      scale[half] = NestedScale(q, map[step.scale_code[half]], scale[half]);
    }
    if (static_cast<int>(threadIdx.x) % 4 >= groups) scale[half] = 0;
  }
}

// 80 bytes for the 16 values of a row of x: lanes t of a quad store to rows 2 t, in banks 8 t on.
constexpr int kPartStride = 20;

template <int kTiles>
struct Shared {
  // Blocks of a multiprocessor: the compiler needs 128 registers a thread for up to 16 rows of x,
  // and more for 32.
  static constexpr int kBlocksAtOnce = kTiles <= 2 ? 2 : 1;

  std::uint32_t table[kTableEntries * kWarp];    // 32 KiB; entry (byte, lane) is in bank `lane`
  float map[kTableEntries];                      // of double-quantized scales
  float parts[kWarps][8 * kTiles][kPartStride];  // the sums of each warp: 5 KiB for each tile
};

// All threads call it, one for each entry.
GPU_INLINE void FillTable(const QuantizedView& q, std::uint32_t* table, float* map) {
  const int entry = static_cast<int>(threadIdx.x);  // of a byte, the first value in the high half
  const int lane = entry % kWarp;
  const std::uint32_t mine = PackBf16x2(q.code[entry >> 4], q.code[entry & 15]);
  if (q.scale_type == ScaleType::kDoubleBnb) map[entry] = q.nested.map[entry];
  // A warp writes the 32 copies of four entries at a time, 16 bytes a lane.
  uint4* out = reinterpret_cast<uint4*>(table) + (entry - lane) * (kWarp / 4);
#pragma unroll
  for (int i = 0; i < kWarp / 4; ++i) {
    const std::uint32_t pair = __shfl_sync(kAllLanes, mine, 4 * i + lane / 8);
    out[i * kWarp + lane] = make_uint4(pair, pair, pair, pair);
  }
}

// The pair of values of a byte of `word`. mine: the copy of entry 0 for this lane.
GPU_INLINE std::uint32_t PairOf(const std::uint32_t* mine, std::uint32_t word, int byte) {
  return mine[__byte_perm(word, 0, 0x4440u + static_cast<unsigned>(byte)) * kWarp];
}

// scale: FindScales. x: column 0 of the step. offsets: elements before the columns of this lane, in
// its row of each tile of 8 rows.
template <int kTiles>
GPU_INLINE void AddStep(Step step, const float (&scale)[2], const std::uint32_t* table,
                        const BFloat16* x, const int (&offsets)[kTiles], int groups,
                        float (&sum)[kTiles][4]) {
  constexpr int kAtOnce = kTiles == 1 ? kGroups : kTiles == 2 ? kGroups / 2 : 1;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t* mine = table + lane;
  // For more rows of x in a loop: the compiler would hold their columns of all groups in registers
  // at once, and has not enough. The codes move to where the next round reads them.
#pragma unroll 1
  for (int first = 0; first < kGroups; first += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      std::uint32_t a[4][4];
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint2 above = step.codes[0][i], below = step.codes[1][i];
        const std::uint32_t word0 = s < 2 ? above.x : above.y;
        const std::uint32_t word1 = s < 2 ? below.x : below.y;
        const int byte = s % 2 * 2;
        a[s][0] = PairOf(mine, word0, byte);
        a[s][1] = PairOf(mine, word1, byte);
        a[s][2] = PairOf(mine, word0, byte + 1);
        a[s][3] = PairOf(mine, word1, byte + 1);
      }
      const int group = first + i;
      const float scale0 = __shfl_sync(kAllLanes, scale[0], lane / 4 * 4 + group);
      const float scale1 = __shfl_sync(kAllLanes, scale[1], lane / 4 * 4 + group);
      const BFloat16* columns = x + (group < groups ? group * kGroup : 0);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const auto* b = reinterpret_cast<const uint4*>(columns + offsets[tile]);
        const uint4 low = b[0], high = b[1];
        // Sums of one group start at 0, because its scale multiplies them before they join the sums
        // of others.
        float d[4] = {};
        MmaBf16(d, a[0], low.x, low.y);
        MmaBf16(d, a[1], low.z, low.w);
        MmaBf16(d, a[2], high.x, high.y);
        MmaBf16(d, a[3], high.z, high.w);
        sum[tile][0] += scale0 * d[0];
        sum[tile][1] += scale0 * d[1];
        sum[tile][2] += scale1 * d[2];
        sum[tile][3] += scale1 * d[3];
      }
    }
#pragma unroll
    for (int i = 0; i + kAtOnce < kGroups; ++i) {
      step.codes[0][i] = step.codes[0][kAtOnce + i];
      step.codes[1][i] = step.codes[1][kAtOnce + i];
    }
  }
}

template <int kTiles>
GPU_INLINE void StoreParts(const float (&sum)[kTiles][4], Shared<kTiles>* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  auto& parts = shared->parts[threadIdx.x / kWarp];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      parts[8 * tile + 2 * (lane % 4) + e % 2][lane / 4 + 8 * (e / 2)] = sum[tile][e];
    }
  }
}

// Adds the parts, the adapter and the bias: a thread for each value of y.
template <int kTiles>
GPU_INLINE void Finish(const Group& group, const Tile& tile, const Shared<kTiles>* shared) {
  const Member& m = group.members[tile.member];
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kTiles * kTileRows; i += kBlockThreads) {
    const int n = i / kTileRows;
    const std::int64_t o = tile.row + i % kTileRows;
    if (n >= group.x.rows || o >= m.y.cols) continue;
    float v = shared->parts[0][n][i % kTileRows];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) v += shared->parts[warp][n][i % kTileRows];
    if (m.b.cols > 0) {
      float dot = 0;
#pragma unroll 4
      for (std::int64_t r = 0; r < m.b.cols; ++r) dot += Float(m.u, n, r) * Float(m.b, o, r);
      v += m.scale * dot;
    }
    if (m.bias.cols > 0) v += Float(m.bias, 0, o);
    if (group.store == Store::kAdd) {
      v += Element({m.y.data, m.y.dtype, m.y.rows, m.y.cols, m.y.stride}, n, o);
    }
    SetElement(m.y, n, o, v);
  }
}

// The first tile of a block: the first blocks have one tile more than the others.
GPU_INLINE int FirstTile(const Group& group, unsigned at) {
  const auto tiles = static_cast<unsigned>(group.tiles);
  const unsigned each = tiles / gridDim.x;
  return static_cast<int>(at * each + min(at, tiles - each * gridDim.x));
}

// At most 8 kTiles rows of x.
template <int kTiles>
__global__ void __launch_bounds__(kBlockThreads, Shared<kTiles>::kBlocksAtOnce)
    FewRowsKernel(Group group) {
  GPU_DYNAMIC_SHARED(raw);
  auto* shared = reinterpret_cast<Shared<kTiles>*>(raw);
  // By a shuffle, from which the compiler sees that whole warps run the loops below.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int begin = FirstTile(group, blockIdx.x);
  const int end = FirstTile(group, blockIdx.x + 1);
  // Loads of the next step are always on their way, also while the table is filled and while the
  // sums of a tile are added.
  int x[kTiles];  // elements before the columns of this lane in its row of each tile of x
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int n =
        min(8 * i + static_cast<int>(threadIdx.x) % kWarp / 4, static_cast<int>(group.x.rows) - 1);
    x[i] = n * static_cast<int>(group.x.stride) + static_cast<int>(threadIdx.x) % 4 * 16;
  }
  LaneRows rows = LaneRowsOf(group, TileOf(group, begin));
  Step next = LoadStep(group, rows, warp < group.steps ? warp : 0);
#pragma unroll 1
  for (int t = begin; t < end; ++t) {
    const Tile tile = TileOf(group, t);
    const QuantizedView& q = group.members[tile.member].weight.q;
    if (t == begin || TileOf(group, t - 1).member != tile.member) {
      FillTable(q, shared->table, shared->map);
      __syncthreads();
    }
    float sum[kTiles][4] = {};
#pragma unroll 1
    for (int at = warp; at < group.steps; at += kWarps) {
      const Step step = next;
      const bool more = at + kWarps < group.steps;
      if (!more && t + 1 < end) rows = LaneRowsOf(group, TileOf(group, t + 1));
      if (more || t + 1 < end) next = LoadStep(group, rows, more ? at + kWarps : warp);
      const int groups = GroupsFrom(group, at);
      float scale[2];
      FindScales(q, step, groups, shared->map, scale);
      const BFloat16* columns = static_cast<const BFloat16*>(group.x.data) + at * kStep;
      AddStep<kTiles>(step, scale, shared->table, columns, x, groups, sum);
    }
    StoreParts<kTiles>(sum, shared);
    __syncthreads();
    Finish<kTiles>(group, tile, shared);
    __syncthreads();  // before the parts and the table of the next tile
  }
}

Member MemberOf(const LinearView& linear, const LinearOutput& out, int first_tile) {
  return {.weight = PackedWeightOf(linear.weight.quantized),
          .bias = linear.bias,
          .b = linear.lora.b,
          .scale = linear.lora.scale,
          .u = out.u,
          .y = out.y,
          .first_tile = first_tile};
}

// fn(group) for the linears of an op, kMostMembers at a time.
template <typename Fn>
void ForGroups(const ops::Linear& op, const Fn& fn) {
  for (std::size_t begin = 0; begin < op.linears.size(); begin += kMostMembers) {
    Group group = {.x = op.x, .store = op.store};
    group.steps = static_cast<int>((op.x.cols + kStep - 1) / kStep);
    for (std::size_t l = begin; l < std::min(begin + kMostMembers, op.linears.size()); ++l) {
      group.members[group.count++] = MemberOf(op.linears[l], op.outputs[l], group.tiles);
      group.tiles += static_cast<int>((op.linears[l].weight.rows() + kTileRows - 1) / kTileRows);
    }
    fn(group);
  }
}

// Rows [begin, begin + count) of x, and so of u and y.
Group RowsOf(Group group, std::int64_t begin, std::int64_t count) {
  group.x = Rows(group.x, begin, count);
  for (int i = 0; i < group.count; ++i) {
    Member& m = group.members[i];
    m.y = Rows(m.y, begin, count);
    if (m.u.rows > 0) m.u = Rows(m.u, begin, count);
  }
  return group;
}

// As many blocks as run at once, each on one tile after the other, so that a block fills its table
// once and no block runs behind the others. The 16 warps of two blocks on a multiprocessor have
// 32 KiB of loads on their way; about 23 KiB hide the latency of memory.
template <int kTiles>
void LaunchFewRows(Stream stream, const Group& group, int multiprocessors) {
  const int blocks = std::min(group.tiles, Shared<kTiles>::kBlocksAtOnce * multiprocessors);
  Launch("FewRows", FewRowsKernel<kTiles>, static_cast<unsigned>(blocks), kBlockThreads,
         sizeof(Shared<kTiles>), stream, group);
}

}  // namespace

bool IsForFewRows(const WeightView& weight, std::int64_t rows) {
  const QuantizedView& q = weight.quantized;
  const bool counts = q.size() <= std::int64_t{1} << 32;
  return weight.form() == WeightForm::kFourBit && rows <= kMostFewRows && q.cols % kGroup == 0 &&
         counts && q.block_size >= kGroup &&
         std::has_single_bit(static_cast<std::uint64_t>(q.block_size)) &&
         reinterpret_cast<std::uintptr_t>(q.packed) % 8 == 0;
}

void QueueFewRows(Stream stream, const ops::Linear& op, int multiprocessors) {
  ForGroups(op, [&](const Group& group) {
    // More rows of x at once would take more registers than a thread has.
    for (std::int64_t begin = 0; begin < op.x.rows; begin += 32) {
      const Group part = RowsOf(group, begin, std::min<std::int64_t>(32, op.x.rows - begin));
      if (part.x.rows <= 8) {
        LaunchFewRows<1>(stream, part, multiprocessors);
      } else if (part.x.rows <= 16) {
        LaunchFewRows<2>(stream, part, multiprocessors);
      } else {
        LaunchFewRows<4>(stream, part, multiprocessors);
      }
    }
  });
}

}  // namespace qlora::cuda
