// Tiles of rows in shared memory and products of them by the matrix unit. For kernels only.
//
// A warp owns 16 rows of a product. Lane l with g = l / 4, t = l % 4 holds of a result (16, n) the
// elements [j][e]: row g + 8 (e / 2), column 8 j + 2 t + e % 2 (MmaBf16 in gpu.h).
#ifndef QLORA_BACKEND_CUDA_ATTENTION_TILES_H_
#define QLORA_BACKEND_CUDA_ATTENTION_TILES_H_

#include "backend/cuda/attention_rows.h"

namespace qlora::cuda {

// Elements between rows of a tile of kD columns: 16 bytes more than the columns, so that the 8 rows
// of an ldmatrix are in different banks for every kD that is a multiple of 16.
template <int kD>
inline constexpr int kTileStride = kD + 8;
template <int kD>
inline constexpr std::size_t TileBytes(int rows) {
  return sizeof(BFloat16) * rows * kTileStride<kD>;
}

GPU_INLINE int LaneOf() { return static_cast<int>(threadIdx.x) % kWarp; }
GPU_INLINE int WarpOf() { return static_cast<int>(threadIdx.x) / kWarp; }

// True when rows of heads can be copied 16 bytes at a time.
GPU_INLINE bool IsVectorRows(const ConstMatrixView& m, int head_dim) {
  return m.dtype == DType::kBF16 && head_dim % kChunk == 0 && m.stride % kChunk == 0 &&
         reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0;
}

// Begins to fill a tile (kRows, kD) with rows [begin, begin + kRows) of a head. Rows behind the
// last and columns behind head_dim are 0. The tile is there after CpAsyncCommit, CpAsyncWait and
// __syncthreads.
template <int kD, int kRows, int kBlock>
GPU_INLINE void FillTile(const ConstMatrixView& m, const HeadRows& rows, int begin,
                         BFloat16* tile) {
  constexpr int kChunks = kD / kChunk;
  const bool vectors = IsVectorRows(m, rows.head_dim);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kBlock) {
    const int r = begin + i / kChunks;
    const int col = i % kChunks * kChunk;
    const int left = r < rows.rows ? rows.head_dim - col : 0;
    const Chunk c = {left > 0 ? rows.RowAt(r) : 0, left > 0 ? rows.ColumnAt(r) + col : 0,
                     Most(0, Least(left, kChunk))};
    BFloat16* to = tile + i / kChunks * kTileStride<kD> + col;
    if (vectors) {
      const BFloat16* from = static_cast<const BFloat16*>(m.data) + c.row * m.stride + c.col;
      CpAsync16(to, from, c.count * static_cast<int>(sizeof(BFloat16)));
      continue;
    }
    float v[kChunk];
    Load(m, c, v);
    StoreChunk(to, kChunk, v);
  }
}

// s(16, kN) = a(16, kD) b(kN, kD)^T, of tiles with kD columns.
template <int kD, int kN>
GPU_INLINE void MultiplyRows(const BFloat16* a, const BFloat16* b, float (&s)[kN / 8][4]) {
  constexpr int kStride = kTileStride<kD>;
  const int lane = LaneOf();
  const BFloat16* row_a = a + lane % 16 * kStride + lane / 16 * 8;
  const BFloat16* row_b = b + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll 4
  for (int k = 0; k < kD; k += 16) {
    std::uint32_t fa[4];
    LdMatrixX4(fa, row_a + k);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      std::uint32_t fb[4];
      LdMatrixX4(fb, row_b + n * 16 * kStride + k);
      MmaBf16(s[2 * n], fa, fb[0], fb[1]);
      MmaBf16(s[2 * n + 1], fa, fb[2], fb[3]);
    }
  }
}

// The result of one product as the left operand of the next: p(16, kN) in bfloat16.
template <int kN>
GPU_INLINE void PackOperand(const float (&s)[kN / 8][4], std::uint32_t (&p)[kN / 16][4]) {
#pragma unroll
  for (int n = 0; n < kN / 16; ++n) {
    p[n][0] = PackBf16x2(s[2 * n][0], s[2 * n][1]);
    p[n][1] = PackBf16x2(s[2 * n][2], s[2 * n][3]);
    p[n][2] = PackBf16x2(s[2 * n + 1][0], s[2 * n + 1][1]);
    p[n][3] = PackBf16x2(s[2 * n + 1][2], s[2 * n + 1][3]);
  }
}

// o(16, kD) += p(16, kN) v(kN, kD), with v a tile.
template <int kD, int kN>
GPU_INLINE void AddProduct(const std::uint32_t (&p)[kN / 16][4], const BFloat16* v,
                           float (&o)[kD / 8][4]) {
  constexpr int kStride = kTileStride<kD>;
  const int lane = LaneOf();
  const BFloat16* row_v = v + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < kN / 16; ++n) {
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      std::uint32_t fv[4];
      LdMatrixX4Trans(fv, row_v + n * 16 * kStride + d * 16);
      MmaBf16(o[2 * d], p[n], fv[0], fv[1]);
      MmaBf16(o[2 * d + 1], p[n], fv[2], fv[3]);
    }
  }
}

// Stores columns col and col + 1, as far as they are less than `cols`.
GPU_INLINE void StorePair(const MatrixView& m, std::int64_t at, int col, int cols, float a,
                          float b) {
  if (m.dtype == DType::kF32) {
    float* to = static_cast<float*>(m.data) + at + col;
    if (col < cols) to[0] = a;
    if (col + 1 < cols) to[1] = b;
    return;
  }
  BFloat16* to = static_cast<BFloat16*>(m.data) + at + col;
  if (col + 1 < cols && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(to) = PackBf16x2(a, b);
    return;
  }
  if (col < cols) to[0] = Narrow(a);
  if (col + 1 < cols) to[1] = Narrow(b);
}

// Stores factor o(16, kD) as rows [begin, begin + 16) of a head.
template <int kD>
GPU_INLINE void StoreRows(const MatrixView& m, const HeadRows& rows, int begin,
                          const float (&o)[kD / 8][4], const float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = begin + LaneOf() / 4 + 8 * half;
    if (r >= rows.rows) continue;
    const std::int64_t at = rows.RowAt(r) * m.stride + rows.ColumnAt(r);
#pragma unroll
    for (int d = 0; d < kD / 8; ++d) {
      StorePair(m, at, 8 * d + LaneOf() % 4 * 2, rows.head_dim, factor[half] * o[d][2 * half],
                factor[half] * o[d][2 * half + 1]);
    }
  }
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ATTENTION_TILES_H_
