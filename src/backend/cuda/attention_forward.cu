// Attention in one pass over the keys, tile by tile, by the matrix unit. Dao, "FlashAttention-2",
// arXiv:2307.08691: with m the largest score so far, the sums l = sum 2^(s - m) and
// o = sum 2^(s - m) v are multiplied by 2^(old m - new m) when m grows.
//
// The tile of keys is loaded while the product with the values before runs, and the reverse.
#include "backend/cuda/attention_tiles.h"

namespace qlora::cuda {
namespace {

constexpr float kNone = -INFINITY;

template <int kD, int kWarps, int kKeys>
struct ForwardTiles {
  static constexpr int kRows = 16 * kWarps;
  static constexpr int kBlock = kWarp * kWarps;
  // That run on a multiprocessor at once, which bounds the registers.
  static constexpr int kBlocks = kWarps == 1 ? 1 : kD <= 64 ? 4 : kD <= 128 ? 3 : 2;
  static constexpr std::size_t kBytes = TileBytes<kD>(kRows + 2 * kKeys);
};

// One row of a head that is spread over the four lanes of a quad.
struct SoftmaxRow {
  int last = -1;  // key that the row sees
  float most = kNone;
  float sum = 0;  // of this lane
};

// Scores of one row and a tile of keys become 2^(score - most). Returns the factor of earlier sums.
template <int kKeys>
GPU_INLINE float Exponentials(float (&s)[kKeys / 8][4], int half, SoftmaxRow& row) {
  // The largest score is a maximum over the four lanes of a quad, because each holds a quarter of
  // the row. Each lane keeps its own sum: all four have the same factors, so one addition at the
  // end of the row joins them.
  float most = row.most;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
    most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
  }
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
  const float base = most == kNone ? 0.0f : most;  // a row that has seen no key yet
  const float factor = exp2f(row.most - base);
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
    s[n][2 * half] = exp2f(s[n][2 * half] - base);
    s[n][2 * half + 1] = exp2f(s[n][2 * half + 1] - base);
    sum += s[n][2 * half] + s[n][2 * half + 1];
  }
  row.most = most;
  row.sum = row.sum * factor + sum;
  return factor;
}

// The tiles of keys of a block: those that its rows see and that belong to its part.
GPU_INLINE Range TilesOf(const Item& item, const HeadsArgs& heads, int row, int rows, int keys) {
  const Range mine = KeysSeenBy(item.span, heads, row, row + rows);
  Range tiles = {mine.begin / keys, (mine.end + keys - 1) / keys};
  if (item.span.splits == 1) return tiles;
  // Parts cut the keys of the whole span, not the keys of this tile of rows: JoinParts then needs
  // no knowledge of tiles. A part may hold no key that these rows see; its lse is then -infinity.
  const Range all = KeysSeenBy(item.span, heads, 0, RowsOf(item.span, heads));
  const int first = all.begin / keys;
  const int count = (all.end + keys - 1) / keys - first;
  const int per_part = (count + item.span.splits - 1) / item.span.splits;
  const int part = first + item.part * per_part;
  return {Most(tiles.begin, part), Least(tiles.end, part + per_part)};
}

template <int kD, int kWarps, int kKeys>
__global__ void __launch_bounds__(kWarp* kWarps, (ForwardTiles<kD, kWarps, kKeys>::kBlocks))
    ForwardKernel(ForwardArgs args, LaunchItems items) {
  using Tiles = ForwardTiles<kD, kWarps, kKeys>;
  GPU_DYNAMIC_SHARED(raw);
  BFloat16* q = reinterpret_cast<BFloat16*>(raw);
  BFloat16* k = q + Tiles::kRows * kTileStride<kD>;
  BFloat16* v = k + kKeys * kTileStride<kD>;
  const HeadsArgs& heads = args.heads;
  const int kv_head = static_cast<int>(blockIdx.y);
  // The last rows see the most keys and begin first.
  const int index = items.items - 1 - static_cast<int>(blockIdx.x);
  const Item item = ItemOf(items, index);
  const std::int64_t place = static_cast<std::int64_t>(index) * heads.kv_heads + kv_head;
  const HeadRows q_rows = QueryRows(item.span, heads, kv_head);
  const HeadRows k_rows = KeyRows(item.span, heads, kv_head);
  const int begin = item.tile * Tiles::kRows;
  const int row = begin + 16 * WarpOf() + LaneOf() / 4;
  const Range tiles = TilesOf(item, heads, begin, Tiles::kRows, kKeys);

  SoftmaxRow softmax[2];
  softmax[0].last = LastKey(item.span, heads, row);
  softmax[1].last = LastKey(item.span, heads, row + 8);
  // Keys that all rows of the block see need no mask.
  const bool full = begin + Tiles::kRows <= q_rows.rows;
  //                everybody      Keys up to the last of the first row, and behind
  //   row begin    ####|          the first of the last row, are seen by all rows.
  //   ...           ####|
  //   last row       ####
  //        window_end|
  const int everybody = full ? LastKey(item.span, heads, begin) : -1;
  const int window_end = LastKey(item.span, heads, begin + Tiles::kRows - 1) - heads.window;
  float o[kD / 8][4] = {};

  FillTile<kD, Tiles::kRows, Tiles::kBlock>(args.q, q_rows, begin, q);
  if (tiles.begin < tiles.end) {
    FillTile<kD, kKeys, Tiles::kBlock>(args.k, k_rows, tiles.begin * kKeys, k);
  }
  CpAsyncCommit();
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int key = tile * kKeys;
    CpAsyncWait<0>();
    __syncthreads();  // the keys are there, and the values before are not read any more
    FillTile<kD, kKeys, Tiles::kBlock>(args.v, k_rows, key, v);
    CpAsyncCommit();

    float s[kKeys / 8][4];
    MultiplyRows<kD, kKeys>(q + 16 * WarpOf() * kTileStride<kD>, k, s);
    const bool masked = key + kKeys - 1 > everybody || key <= window_end;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = key + 8 * n + LaneOf() % 4 * 2 + e % 2;
        s[n][e] = Score2(heads, s[n][e]);
        if (masked && !Sees(heads, softmax[e / 2].last, column)) s[n][e] = kNone;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = Exponentials<kKeys>(s, half, softmax[half]);
#pragma unroll
      for (int d = 0; d < kD / 8; ++d) {
        o[d][2 * half] *= factor;
        o[d][2 * half + 1] *= factor;
      }
    }
    std::uint32_t p[kKeys / 16][4];
    PackOperand<kKeys>(s, p);

    CpAsyncWait<0>();
    __syncthreads();  // the values are there, and the keys are not read any more
    if (tile + 1 < tiles.end) {
      FillTile<kD, kKeys, Tiles::kBlock>(args.k, k_rows, key + kKeys, k);
    }
    CpAsyncCommit();
    AddProduct<kD, kKeys>(p, v, o);
  }
  CpAsyncWait<0>();

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = softmax[half].sum;
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    // 0, not infinity: a part without keys has o = 0, and its weight in JoinParts is 2^-infinity =
    // 0.
    inverse[half] = sum > 0 ? 1.0f / sum : 0.0f;
    const float lse2 = softmax[half].most + log2f(sum);  // no key: -infinity
    const int r = row + 8 * half;
    if (LaneOf() % 4 != 0 || r >= q_rows.rows) continue;
    if (item.span.splits == 1) {
      OfHead(args.lse, q_rows, kv_head, r) = lse2 * kLn2;
    } else {
      args.partial_lse[place * Tiles::kRows + r - begin] = lse2;
    }
  }
  if (item.span.splits == 1) {
    return StoreRows<kD>(args.o, q_rows, begin + 16 * WarpOf(), o, inverse);
  }
  // The rows of the tile in the room of this item.
  const MatrixView room = {args.partial_o, DType::kF32, 0, heads.head_dim, heads.head_dim};
  const HeadRows rows = {place * Tiles::kRows - begin, 0, q_rows.rows, 1, heads.head_dim};
  StoreRows<kD>(room, rows, begin + 16 * WarpOf(), o, inverse);
}

// A warp joins the parts of a row: o = sum 2^(lse_i - lse) o_i.
__global__ void __launch_bounds__(kWarp* kFewRows)
    JoinPartsKernel(ForwardArgs args, LaunchItems items) {
  const HeadsArgs& heads = args.heads;
  const int kv_head = static_cast<int>(blockIdx.y);
  const Item item = ItemOf(items, static_cast<int>(blockIdx.x));
  const HeadRows rows = QueryRows(item.span, heads, kv_head);
  const int in_tile = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int r = item.tile * kFewRows + in_tile;
  // One block of each tile does the work; whole warps return.
  if (item.part != 0 || item.span.splits == 1 || r >= rows.rows) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * heads.kv_heads + kv_head;
  const std::int64_t first_row = first * kFewRows + in_tile;
  const std::int64_t step = static_cast<std::int64_t>(heads.kv_heads) * kFewRows;
  // Each query sees at least its own key, so `most` is finite here and no difference is NaN.
  float most = kNone;
  for (int i = lane; i < item.span.splits; i += kWarp) {
    most = fmaxf(most, args.partial_lse[first_row + i * step]);
  }
  most = WarpJoin(most, Larger());
  float sum = 0;
  for (int i = lane; i < item.span.splits; i += kWarp) {
    sum += exp2f(args.partial_lse[first_row + i * step] - most);
  }
  const float lse2 = most + log2f(WarpJoin(sum, Plus()));
  if (lane == 0) OfHead(args.lse, rows, kv_head, r) = lse2 * kLn2;
  const std::int64_t at = rows.RowAt(r) * args.o.stride + rows.ColumnAt(r);
  for (int col = 2 * lane; col < heads.head_dim; col += 2 * kWarp) {
    // Parts are added in ascending order, whichever block finished first: the bits do not change.
    float o[2] = {};
    for (int i = 0; i < item.span.splits; ++i) {
      const std::int64_t row = first_row + i * step;
      const float weight = exp2f(args.partial_lse[row] - lse2);
      const float* part = args.partial_o + row * heads.head_dim + col;
      o[0] += weight * part[0];
      if (col + 1 < heads.head_dim) o[1] += weight * part[1];
    }
    StorePair(args.o, at, col, heads.head_dim, o[0], o[1]);
  }
}

template <int kD, int kWarps, int kKeys>
void LaunchForward(Stream stream, const ForwardArgs& args, const LaunchItems& items) {
  using Tiles = ForwardTiles<kD, kWarps, kKeys>;
  const dim3 grid(static_cast<unsigned>(items.items), static_cast<unsigned>(args.heads.kv_heads));
  Launch("Attention", ForwardKernel<kD, kWarps, kKeys>, grid, Tiles::kBlock, Tiles::kBytes, stream,
         args, items);
}

template <int kWarps>
void LaunchForHeadDim(Stream stream, const ForwardArgs& args, const LaunchItems& items) {
  const int head_dim = args.heads.head_dim;
  if (head_dim <= 32) return LaunchForward<32, kWarps, 32>(stream, args, items);
  if (head_dim <= 64) return LaunchForward<64, kWarps, 64>(stream, args, items);
  if (head_dim <= 96) return LaunchForward<96, kWarps, 64>(stream, args, items);
  if (head_dim <= 128) return LaunchForward<128, kWarps, 64>(stream, args, items);
  LaunchForward<256, kWarps, 32>(stream, args, items);
}

}  // namespace

void QueueForward(Stream stream, const ForwardArgs& args, const LaunchItems& items, bool few) {
  if (few) return LaunchForHeadDim<kFewRows / 16>(stream, args, items);
  LaunchForHeadDim<kTileRows / 16>(stream, args, items);
}

void QueueJoinParts(Stream stream, const ForwardArgs& args, const LaunchItems& items) {
  const dim3 grid(static_cast<unsigned>(items.items), static_cast<unsigned>(args.heads.kv_heads));
  Launch("JoinParts", JoinPartsKernel, grid, kWarp * kFewRows, 0, stream, args, items);
}

}  // namespace qlora::cuda
