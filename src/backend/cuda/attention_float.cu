// Attention with products in float32: a warp for each query row of a head, and in the backward pass
// for each key row too. 32 keys (or queries) at a time, a lane computes the score of each; then the
// lanes share the columns of the sums.
#include "backend/cuda/attention_rows.h"

namespace qlora::cuda {
namespace {

constexpr int kBlock = kWarp * kFloatRows;

GPU_INLINE float At(const ConstMatrixView& m, std::int64_t at) {
  if (m.dtype == DType::kBF16) return Widen(static_cast<const BFloat16*>(m.data)[at]);
  return static_cast<const float*>(m.data)[at];
}
GPU_INLINE void Put(const MatrixView& m, std::int64_t at, float v) {
  if (m.dtype == DType::kBF16) {
    static_cast<BFloat16*>(m.data)[at] = Narrow(v);
  } else {
    static_cast<float*>(m.data)[at] = v;
  }
}
// The first element of row r of a head.
GPU_INLINE std::int64_t PlaceOf(std::int64_t stride, const HeadRows& rows, int r) {
  return rows.RowAt(r) * stride + rows.ColumnAt(r);
}

// Room of a warp in shared memory: kVectors of head_dim values, then kLists of a value per lane.
template <int kVectors, int kLists>
struct Room {
  int head_dim;
  float* base;

  GPU_INLINE float* Vector(int i) const { return base + i * head_dim; }
  GPU_INLINE float* List(int i) const { return base + kVectors * head_dim + i * kWarp; }
  // head_dim is not a template parameter: these kernels serve heads of any length.
  static std::size_t BytesOf(int head_dim) {
    return sizeof(float) * kFloatRows * (kVectors * head_dim + kLists * kWarp);
  }
};
template <int kVectors, int kLists>
GPU_INLINE Room<kVectors, kLists> RoomOf(unsigned char* raw, int head_dim) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  return {head_dim, reinterpret_cast<float*>(raw) + warp * (kVectors * head_dim + kLists * kWarp)};
}

// The work of a block, and the row of this warp.
struct Work {
  SpanItems span;
  HeadRows q_rows, k_rows;
  int kv_head;
  int row;
  int lane;
};
GPU_INLINE Work WorkOf(const LaunchItems& items, const HeadsArgs& heads) {
  const Item item = ItemOf(items, static_cast<int>(blockIdx.x));
  const int kv_head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  return {item.span, QueryRows(item.span, heads, kv_head),    KeyRows(item.span, heads, kv_head),
          kv_head,   item.tile * kFloatRows + thread / kWarp, thread % kWarp};
}

GPU_INLINE void CopyRow(const ConstMatrixView& m, const HeadRows& rows, int r, float* to) {
  const std::int64_t at = PlaceOf(m.stride, rows, r);
  for (int d = static_cast<int>(threadIdx.x) % kWarp; d < rows.head_dim; d += kWarp) {
    to[d] = At(m, at + d);
  }
}
GPU_INLINE float Dot(const float* a, const ConstMatrixView& m, const HeadRows& rows, int r) {
  const std::int64_t at = PlaceOf(m.stride, rows, r);
  float sum = 0;
  for (int d = 0; d < rows.head_dim; ++d) sum += a[d] * At(m, at + d);
  return sum;
}
// sum = factor sum + the sum over i < count of weight[i] (row first + i of a head).
GPU_INLINE void AddRows(const ConstMatrixView& m, const HeadRows& rows, int first, int count,
                        const float* weight, float factor, float* sum) {
  // A lane owns columns lane, lane + 32 ... of the sums: no two lanes write one value, and a row of
  // m is read by neighbouring lanes from neighbouring addresses.
  for (int d = static_cast<int>(threadIdx.x) % kWarp; d < rows.head_dim; d += kWarp) {
    float total = sum[d] * factor;
    for (int i = 0; i < count; ++i) {
      total += weight[i] * At(m, PlaceOf(m.stride, rows, first + i) + d);
    }
    sum[d] = total;
  }
}
GPU_INLINE void StoreRow(const MatrixView& m, const HeadRows& rows, int r, const float* from,
                         float factor) {
  const std::int64_t at = PlaceOf(m.stride, rows, r);
  for (int d = static_cast<int>(threadIdx.x) % kWarp; d < rows.head_dim; d += kWarp) {
    Put(m, at + d, from[d] * factor);
  }
}

// The capped score of a product.
GPU_INLINE float Score(const HeadsArgs& heads, float dot) {
  const float score = dot * heads.scale;
  return heads.softcap == 0 ? score : heads.softcap * tanhf(score / heads.softcap);
}
GPU_INLINE float Slope(const HeadsArgs& heads, float score) {
  if (heads.softcap == 0) return 1.0f;
  const float t = score / heads.softcap;
  return 1.0f - t * t;
}

__global__ void __launch_bounds__(kBlock) FloatForwardKernel(ForwardArgs args, LaunchItems items) {
  GPU_DYNAMIC_SHARED(raw);
  const Work w = WorkOf(items, args.heads);
  if (w.row >= w.q_rows.rows) return;  // whole warps, which never wait for each other
  const auto room = RoomOf<2, 1>(raw, args.heads.head_dim);
  float* q = room.Vector(0);
  float* o = room.Vector(1);
  float* list = room.List(0);
  CopyRow(args.q, w.q_rows, w.row, q);
  for (int d = w.lane; d < args.heads.head_dim; d += kWarp) o[d] = 0;
  __syncwarp();
  const Range keys = KeysSeenBy(w.span, args.heads, w.row, w.row + 1);
  float most = -INFINITY;
  float sum = 0;
  for (int key = keys.begin; key < keys.end; key += kWarp) {
    const int count = Least(kWarp, keys.end - key);
    float score = -INFINITY;
    if (w.lane < count) score = Score(args.heads, Dot(q, args.k, w.k_rows, key + w.lane));
    // Every lane reads all scores, and all weights: shuffles would be calls in a loop of which the
    // compiler cannot tell that the lanes take the same turns. Lanes beyond count hold -infinity,
    // whose weight is 0.
    list[w.lane] = score;
    __syncwarp();
    float larger = most;
    for (int i = 0; i < count; ++i) larger = fmaxf(larger, list[i]);
    __syncwarp();
    list[w.lane] = expf(score - larger);
    __syncwarp();
    // In the first turn most is -infinity and the factor 0. `larger` is finite, because all keys of
    // the range are seen: a range of one row needs no mask.
    const float factor = expf(most - larger);
    sum *= factor;
    for (int i = 0; i < count; ++i) sum += list[i];
    most = larger;
    AddRows(args.v, w.k_rows, key, count, list, factor, o);
    __syncwarp();
  }
  StoreRow(args.o, w.q_rows, w.row, o, 1.0f / sum);
  if (w.lane == 0) OfHead(args.lse, w.q_rows, w.kv_head, w.row) = most + logf(sum);
}

__global__ void __launch_bounds__(kBlock)
    FloatQueryGradientKernel(BackwardArgs args, LaunchItems items) {
  GPU_DYNAMIC_SHARED(raw);
  const Work w = WorkOf(items, args.heads);
  if (w.row >= w.q_rows.rows) return;
  const auto room = RoomOf<3, 1>(raw, args.heads.head_dim);
  float* q = room.Vector(0);
  float* d_o = room.Vector(1);
  float* dq = room.Vector(2);
  float* list = room.List(0);
  CopyRow(args.q, w.q_rows, w.row, q);
  CopyRow(args.d_o, w.q_rows, w.row, d_o);
  for (int d = w.lane; d < args.heads.head_dim; d += kWarp) dq[d] = 0;
  __syncwarp();
  const float lse = OfHead(args.lse, w.q_rows, w.kv_head, w.row);
  const float delta = OfHead(args.delta, w.q_rows, w.kv_head, w.row);
  // Scores are recomputed from q and k, p = exp(s - lse): keeping p would take N^2 values per head.
  const Range keys = KeysSeenBy(w.span, args.heads, w.row, w.row + 1);
  for (int key = keys.begin; key < keys.end; key += kWarp) {
    const int count = Least(kWarp, keys.end - key);
    if (w.lane < count) {
      const float score = Score(args.heads, Dot(q, args.k, w.k_rows, key + w.lane));
      const float dp = Dot(d_o, args.v, w.k_rows, key + w.lane);
      list[w.lane] = expf(score - lse) * (dp - delta) * Slope(args.heads, score);
    }
    __syncwarp();
    AddRows(args.k, w.k_rows, key, count, list, 1, dq);
    __syncwarp();
  }
  // ds is the gradient of the scaled score s = scale q . k, so dq = scale sum ds k, dk = scale sum
  // ds q.
  StoreRow(args.dq, w.q_rows, w.row, dq, args.heads.scale);
}

__global__ void __launch_bounds__(kBlock)
    FloatKeyGradientsKernel(BackwardArgs args, LaunchItems items) {
  GPU_DYNAMIC_SHARED(raw);
  const Work w = WorkOf(items, args.heads);
  if (w.row >= w.k_rows.rows) return;
  const auto room = RoomOf<4, 2>(raw, args.heads.head_dim);
  float* k = room.Vector(0);
  float* v = room.Vector(1);
  float* dk = room.Vector(2);
  float* dv = room.Vector(3);
  float* ds = room.List(0);
  float* p = room.List(1);
  CopyRow(args.k, w.k_rows, w.row, k);
  CopyRow(args.v, w.k_rows, w.row, v);
  for (int d = w.lane; d < args.heads.head_dim; d += kWarp) dk[d] = dv[d] = 0;
  __syncwarp();
  // Rows are queries times heads of the group: the sum over them is also the sum over the heads
  // that share this key, without atomics and in one order.
  const Range rows = RowsThatSee(w.span, args.heads, w.row, w.row + 1);
  for (int row = rows.begin; row < rows.end; row += kWarp) {
    const int count = Least(kWarp, rows.end - row);
    if (w.lane < count) {
      const int r = row + w.lane;
      const float score = Score(args.heads, Dot(k, args.q, w.q_rows, r));
      const float dp = Dot(v, args.d_o, w.q_rows, r);
      p[w.lane] = expf(score - OfHead(args.lse, w.q_rows, w.kv_head, r));
      ds[w.lane] =
          p[w.lane] * (dp - OfHead(args.delta, w.q_rows, w.kv_head, r)) * Slope(args.heads, score);
    }
    __syncwarp();
    AddRows(args.q, w.q_rows, row, count, ds, 1, dk);
    AddRows(args.d_o, w.q_rows, row, count, p, 1, dv);
    __syncwarp();
  }
  StoreRow(args.dk, w.k_rows, w.row, dk, args.heads.scale);
  StoreRow(args.dv, w.k_rows, w.row, dv, 1);
}

template <typename Args>
dim3 GridOf(const Args& args, const LaunchItems& items) {
  return {static_cast<unsigned>(items.items), static_cast<unsigned>(args.heads.kv_heads)};
}

}  // namespace

void QueueFloatForward(Stream stream, const ForwardArgs& args, const LaunchItems& items) {
  Launch("FloatAttention", FloatForwardKernel, GridOf(args, items), kBlock,
         Room<2, 1>::BytesOf(args.heads.head_dim), stream, args, items);
}
void QueueFloatQueryGradient(Stream stream, const BackwardArgs& args, const LaunchItems& items) {
  Launch("FloatQueryGradient", FloatQueryGradientKernel, GridOf(args, items), kBlock,
         Room<3, 1>::BytesOf(args.heads.head_dim), stream, args, items);
}
void QueueFloatKeyGradients(Stream stream, const BackwardArgs& args, const LaunchItems& items) {
  Launch("FloatKeyGradients", FloatKeyGradientsKernel, GridOf(args, items), kBlock,
         Room<4, 2>::BytesOf(args.heads.head_dim), stream, args, items);
}

}  // namespace qlora::cuda
