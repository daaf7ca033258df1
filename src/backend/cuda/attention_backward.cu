// The gradient of attention by the matrix unit, in two kernels that recompute the scores, so that
// each sum is made by one block in a fixed order:
//   p = 2^(s - lse);  dp = d_o . v;  ds = p (dp - delta) cap';  delta = d_o . o
//   queries   dq = scale ds k              a block has queries, keys go by
//   keys      dk = scale ds^T q, dv = p^T d_o   a block has keys, queries go by
#include "backend/cuda/attention_tiles.h"

namespace qlora::cuda {
namespace {

constexpr int kOwn = kTileRows;  // rows or keys of a block
constexpr int kWarps = kOwn / 16;
constexpr int kBlock = kWarp * kWarps;

// kOther rows go by at a time, in kStages buffers. Both numbers bound the shared memory of a block:
// 68 KiB for kD = 128, 83 KiB for kD = 256. Two stages of 32 rows would take 132 KiB for kD = 256,
// where GPUs of compute capability 8.6 and 8.9 have 99 KiB for a block.
template <int kD>
inline constexpr int kOther = kD <= 128 ? 32 : 16;
template <int kD>
inline constexpr int kStages = kD <= 128 ? 2 : 1;

// Two tiles that stay and two that go by, one behind the other.
template <int kD>
struct Buffers {
  static constexpr int kOwnSize = kOwn * kTileStride<kD>;
  static constexpr int kOtherSize = kOther<kD> * kTileStride<kD>;
  static constexpr std::size_t kBytes =
      2 * TileBytes<kD>(kOwn) + 2 * kStages<kD> * TileBytes<kD>(kOther<kD>);

  BFloat16* base;

  GPU_INLINE BFloat16* Own(int which) const { return base + which * kOwnSize; }
  GPU_INLINE BFloat16* Other(int which, int tile) const {
    return base + 2 * kOwnSize + (tile % kStages<kD> * 2 + which) * kOtherSize;
  }
  // The rows of this warp.
  GPU_INLINE const BFloat16* Mine(int which) const {
    return Own(which) + 16 * WarpOf() * kTileStride<kD>;
  }
};

// fill(i) begins to load tile i, use(i) works on it, for i in [begin, end).
template <int kStagesOf, typename Fill, typename Use>
GPU_INLINE void GoBy(int begin, int end, const Fill& fill, const Use& use) {
  if (begin < end) fill(begin);
  CpAsyncCommit();
  for (int i = begin; i < end; ++i) {
    CpAsyncWait<0>();
    __syncthreads();  // i is there, and i - 1 is not read any more
    if (kStagesOf == 2 && i + 1 < end) fill(i + 1);
    CpAsyncCommit();
    use(i);
    if (kStagesOf == 2 || i + 1 == end) continue;
    __syncthreads();
    fill(i + 1);
    CpAsyncCommit();
  }
  CpAsyncWait<0>();
}

template <int kD>
__global__ void __launch_bounds__(kBlock)
    QueryGradientKernel(BackwardArgs args, LaunchItems items) {
  GPU_DYNAMIC_SHARED(raw);
  constexpr int kKeys = kOther<kD>;
  const Buffers<kD> buffers = {reinterpret_cast<BFloat16*>(raw)};
  const HeadsArgs& heads = args.heads;
  const int kv_head = static_cast<int>(blockIdx.y);
  // In reverse: the last rows see the most keys, and a launch takes as long as the block that ends
  // last.
  const Item item = ItemOf(items, items.items - 1 - static_cast<int>(blockIdx.x));
  const HeadRows q_rows = QueryRows(item.span, heads, kv_head);
  const HeadRows k_rows = KeyRows(item.span, heads, kv_head);
  const int begin = item.tile * kOwn;
  const Range keys = KeysSeenBy(item.span, heads, begin, begin + kOwn);

  int last[2];
  float lse2[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = begin + 16 * WarpOf() + LaneOf() / 4 + 8 * half;
    const bool there = r < q_rows.rows;
    // Rows behind the last one see no key (last = -1): their ds is 0 whatever lse and delta are.
    last[half] = LastKey(item.span, heads, r);
    lse2[half] = there ? OfHead(args.lse, q_rows, kv_head, r) * kLog2E : 0.0f;
    delta[half] = there ? OfHead(args.delta, q_rows, kv_head, r) : 0.0f;
  }
  FillTile<kD, kOwn, kBlock>(args.q, q_rows, begin, buffers.Own(0));
  FillTile<kD, kOwn, kBlock>(args.d_o, q_rows, begin, buffers.Own(1));

  float dq[kD / 8][4] = {};
  const auto fill = [&](int tile) {
    FillTile<kD, kKeys, kBlock>(args.k, k_rows, tile * kKeys, buffers.Other(0, tile));
    FillTile<kD, kKeys, kBlock>(args.v, k_rows, tile * kKeys, buffers.Other(1, tile));
  };
  const auto use = [&](int tile) {
    float s[kKeys / 8][4], dp[kKeys / 8][4];
    MultiplyRows<kD, kKeys>(buffers.Mine(0), buffers.Other(0, tile), s);
    MultiplyRows<kD, kKeys>(buffers.Mine(1), buffers.Other(1, tile), dp);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = tile * kKeys + 8 * n + LaneOf() % 4 * 2 + e % 2;
        const float score = Score2(heads, s[n][e]);
        const float p = exp2f(score - lse2[e / 2]);
        const float ds = p * (dp[n][e] - delta[e / 2]) * CapSlope(heads, score);
        // Chosen, not multiplied by 0: lse does not bound the score of a key that the row does not
        // see, so its p may be infinite and its ds NaN.
        s[n][e] = Sees(heads, last[e / 2], key) ? ds : 0.0f;
      }
    }
    std::uint32_t ds[kKeys / 16][4];
    PackOperand<kKeys>(s, ds);
    AddProduct<kD, kKeys>(ds, buffers.Other(0, tile), dq);
  };
  GoBy<kStages<kD>>(keys.begin / kKeys, (keys.end + kKeys - 1) / kKeys, fill, use);
  // The scale of scores, once per sum in float32 instead of once per ds before rounding to
  // bfloat16.
  StoreRows<kD>(args.dq, q_rows, begin + 16 * WarpOf(), dq, {heads.scale, heads.scale});
}

// The values that a tile of queries needs in addition to its rows.
template <int kRows>
struct RowValues {
  int last[kRows];
  float lse2[kRows];
  float delta[kRows];
};

// The gradients of keys or of values or, where registers suffice for both, of both.
template <int kD, bool kOfKeys, bool kOfValues>
__global__ void __launch_bounds__(kBlock) KeyGradientsKernel(BackwardArgs args, LaunchItems items) {
  GPU_DYNAMIC_SHARED(raw);
  constexpr int kRows = kOther<kD>;
  GPU_SHARED(RowValues<kRows>, values, [2]);
  const Buffers<kD> buffers = {reinterpret_cast<BFloat16*>(raw)};
  const HeadsArgs& heads = args.heads;
  const int kv_head = static_cast<int>(blockIdx.y);
  const Item item = ItemOf(items, static_cast<int>(blockIdx.x));  // the first keys have most rows
  const HeadRows q_rows = QueryRows(item.span, heads, kv_head);
  const HeadRows k_rows = KeyRows(item.span, heads, kv_head);
  const int begin = item.tile * kOwn;
  const Range rows = RowsThatSee(item.span, heads, begin, Least(begin + kOwn, item.span.kv_rows));
  FillTile<kD, kOwn, kBlock>(args.k, k_rows, begin, buffers.Own(0));
  FillTile<kD, kOwn, kBlock>(args.v, k_rows, begin, buffers.Own(1));

  float dk[kOfKeys ? kD / 8 : 1][4] = {};
  float dv[kOfValues ? kD / 8 : 1][4] = {};
  const auto fill = [&](int tile) {
    FillTile<kD, kRows, kBlock>(args.q, q_rows, tile * kRows, buffers.Other(0, tile));
    FillTile<kD, kRows, kBlock>(args.d_o, q_rows, tile * kRows, buffers.Other(1, tile));
    const int i = static_cast<int>(threadIdx.x);
    const int r = tile * kRows + i;
    // One thread for each row of the tile. Values are stored without cp.async; the barrier of GoBy
    // before use(tile) makes them visible to the other warps.
    if (i >= kRows) return;
    const bool there = r < q_rows.rows;
    RowValues<kRows>& to = values[tile % kStages<kD>];
    to.last[i] = LastKey(item.span, heads, r);
    to.lse2[i] = there ? OfHead(args.lse, q_rows, kv_head, r) * kLog2E : 0.0f;
    to.delta[i] = there ? OfHead(args.delta, q_rows, kv_head, r) : 0.0f;
  };
  // Transposed: keys are the rows of the results, queries their columns.
  const auto use = [&](int tile) {
    const RowValues<kRows>& row = values[tile % kStages<kD>];
    float s[kRows / 8][4];
    std::uint32_t operand[kRows / 16][4];
    MultiplyRows<kD, kRows>(buffers.Mine(0), buffers.Other(0, tile), s);
    float p[kRows / 8][4];
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = 8 * n + LaneOf() % 4 * 2 + e % 2;
        const int key = begin + 16 * WarpOf() + LaneOf() / 4 + 8 * (e / 2);
        s[n][e] = Score2(heads, s[n][e]);
        p[n][e] = Sees(heads, row.last[i], key) ? exp2f(s[n][e] - row.lse2[i]) : 0.0f;
      }
    }
    // dv first: p is packed before dp takes further registers.
    if constexpr (kOfValues) {
      PackOperand<kRows>(p, operand);
      AddProduct<kD, kRows>(operand, buffers.Other(1, tile), dv);
    }
    if constexpr (kOfKeys) {
      float dp[kRows / 8][4];
      MultiplyRows<kD, kRows>(buffers.Mine(1), buffers.Other(1, tile), dp);
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float delta = row.delta[8 * n + LaneOf() % 4 * 2 + e % 2];
          dp[n][e] = p[n][e] * (dp[n][e] - delta) * CapSlope(heads, s[n][e]);
        }
      }
      PackOperand<kRows>(dp, operand);
      AddProduct<kD, kRows>(operand, buffers.Other(0, tile), dk);
    }
  };
  GoBy<kStages<kD>>(rows.begin / kRows, (rows.end + kRows - 1) / kRows, fill, use);
  const int mine = begin + 16 * WarpOf();
  if constexpr (kOfKeys) StoreRows<kD>(args.dk, k_rows, mine, dk, {heads.scale, heads.scale});
  if constexpr (kOfValues) StoreRows<kD>(args.dv, k_rows, mine, dv, {1.0f, 1.0f});
}

// A warp for each row of a head.
__global__ void __launch_bounds__(kThreads) DeltaKernel(BackwardArgs args) {
  const Team team = TeamOf(kWarp);
  if (team.row >= args.delta.rows) return;
  const std::int64_t head = blockIdx.y;
  float sum = 0;
  ForChunks(team, args.heads.head_dim, [&](const Chunk& c) {
    const Chunk at = {c.row, head * args.heads.head_dim + c.col, c.count};
    float d_o[kChunk], o[kChunk];
    Load(args.d_o, at, d_o);
    Load(args.o, at, o);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += d_o[i] * o[i];
  });
  sum = WarpJoin(sum, Plus());
  if (team.rank == 0) Float(args.delta, team.row, head) = sum;
}

dim3 GridOf(const BackwardArgs& args, const LaunchItems& items) {
  return {static_cast<unsigned>(items.items), static_cast<unsigned>(args.heads.kv_heads)};
}

template <int kD>
void LaunchQueryGradient(Stream stream, const BackwardArgs& args, const LaunchItems& items) {
  Launch("AttentionQueryGradient", QueryGradientKernel<kD>, GridOf(args, items), kBlock,
         Buffers<kD>::kBytes, stream, args, items);
}
template <int kD, bool kOfKeys, bool kOfValues>
void LaunchKeyGradients(Stream stream, const BackwardArgs& args, const LaunchItems& items) {
  Launch("AttentionKeyGradients", KeyGradientsKernel<kD, kOfKeys, kOfValues>, GridOf(args, items),
         kBlock, Buffers<kD>::kBytes, stream, args, items);
}

}  // namespace

void QueueQueryGradient(Stream stream, const BackwardArgs& args, const LaunchItems& items) {
  const int head_dim = args.heads.head_dim;
  if (head_dim <= 32) return LaunchQueryGradient<32>(stream, args, items);
  if (head_dim <= 64) return LaunchQueryGradient<64>(stream, args, items);
  if (head_dim <= 96) return LaunchQueryGradient<96>(stream, args, items);
  if (head_dim <= 128) return LaunchQueryGradient<128>(stream, args, items);
  LaunchQueryGradient<256>(stream, args, items);
}

void QueueKeyGradients(Stream stream, const BackwardArgs& args, const LaunchItems& items) {
  const int head_dim = args.heads.head_dim;
  if (head_dim <= 32) return LaunchKeyGradients<32, true, true>(stream, args, items);
  if (head_dim <= 64) return LaunchKeyGradients<64, true, true>(stream, args, items);
  if (head_dim <= 96) return LaunchKeyGradients<96, true, true>(stream, args, items);
  if (head_dim <= 128) return LaunchKeyGradients<128, true, true>(stream, args, items);
  // A sum (16, 256) of a warp is 256 / 8 * 4 = 128 registers of every lane, which has 255: sums of
  // dk and of dv do not fit together. Two kernels compute the scores twice but spill nothing of the
  // sums.
  LaunchKeyGradients<256, true, false>(stream, args, items);
  LaunchKeyGradients<256, false, true>(stream, args, items);
}

void QueueDelta(Stream stream, const BackwardArgs& args) {
  const dim3 grid(TeamBlocks(args.delta.rows, kWarp), static_cast<unsigned>(args.delta.cols));
  Launch("AttentionDelta", DeltaKernel, grid, kThreads, 0, stream, args);
}

}  // namespace qlora::cuda
