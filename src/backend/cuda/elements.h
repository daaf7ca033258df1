// How kernels walk over matrices: a thread works on chunks of 8 consecutive columns, which are one
// or two 16-byte accesses where they are aligned. Element types are looked up per chunk, so that a
// kernel is compiled once for all of them. For kernels only.
#ifndef QLORA_BACKEND_CUDA_ELEMENTS_H_
#define QLORA_BACKEND_CUDA_ELEMENTS_H_

#include "backend/cuda/gpu.h"

namespace qlora::cuda {

inline constexpr int kThreads = 256;  // of a block
inline constexpr int kChunk = 8;

struct Chunk {
  std::int64_t row = 0;
  std::int64_t col = 0;
  int count = 0;  // columns, at most kChunk; less at the end of a row
};

// The chunks of a matrix, one for each thread. 2^log_team threads share a row.
struct Tiling {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  unsigned row_blocks = 0;
  unsigned col_blocks = 0;
  unsigned log_team = 0;

  unsigned blocks() const { return row_blocks * col_blocks; }
};
inline Tiling TilingOf(std::int64_t rows, std::int64_t cols) {
  Tiling t = {.rows = rows, .cols = cols};
  if (rows == 0 || cols == 0) return t;
  while ((kChunk << t.log_team) < cols && (1 << t.log_team) < kThreads) ++t.log_team;
  const std::int64_t rows_per_block = kThreads >> t.log_team;
  const std::int64_t cols_per_block = kChunk << t.log_team;
  t.row_blocks = static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block);
  t.col_blocks = static_cast<unsigned>((cols + cols_per_block - 1) / cols_per_block);
  return t;
}

// The chunk of this thread in a block of the tiling; count is 0 outside of the matrix.
GPU_INLINE Chunk ChunkOf(const Tiling& t, unsigned block) {
  const unsigned row_block = block / t.col_blocks;
  const unsigned col_block = block - row_block * t.col_blocks;
  const unsigned rank = threadIdx.x & ((1u << t.log_team) - 1);
  Chunk c;
  c.row =
      static_cast<std::int64_t>(row_block) * (kThreads >> t.log_team) + (threadIdx.x >> t.log_team);
  c.col = ((static_cast<std::int64_t>(col_block) << t.log_team) + rank) * kChunk;
  if (c.row < t.rows && c.col < t.cols) {
    c.count = t.cols - c.col < kChunk ? static_cast<int>(t.cols - c.col) : kChunk;
  }
  return c;
}

// The same where each block of the launch is a block of the tiling.
GPU_INLINE Chunk ChunkOf(const Tiling& t) { return ChunkOf(t, blockIdx.x); }

GPU_INLINE bool IsVector(const void* p, int count) {
  return count == kChunk && reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

// ---- Chunks of each element type. Values beyond the count are 0.

GPU_INLINE void LoadChunk(const float* p, int count, float (&v)[kChunk]) {
  if (IsVector(p, count)) {
    const float4 a = reinterpret_cast<const float4*>(p)[0];
    const float4 b = reinterpret_cast<const float4*>(p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v[i] = i < count ? p[i] : 0.0f;
}
GPU_INLINE void LoadChunk(const BFloat16* p, int count, float (&v)[kChunk]) {
  if (IsVector(p, count)) {
    const uint4 a = *reinterpret_cast<const uint4*>(p);
    const std::uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(words[i] << 16);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v[i] = i < count ? Widen(p[i]) : 0.0f;
}
GPU_INLINE void LoadChunk(const Float16* p, int count, float (&v)[kChunk]) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v[i] = i < count ? Widen(p[i]) : 0.0f;
}

GPU_INLINE void StoreChunk(float* p, int count, const float (&v)[kChunk]) {
  if (IsVector(p, count)) {
    reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (i < count) p[i] = v[i];
  }
}
// p is aligned to 16.
GPU_INLINE void StoreVector(BFloat16* p, const float (&v)[kChunk]) {
  *reinterpret_cast<uint4*>(p) = make_uint4(PackBf16x2(v[0], v[1]), PackBf16x2(v[2], v[3]),
                                            PackBf16x2(v[4], v[5]), PackBf16x2(v[6], v[7]));
}
GPU_INLINE void StoreChunk(BFloat16* p, int count, const float (&v)[kChunk]) {
  if (IsVector(p, count)) return StoreVector(p, v);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (i < count) p[i] = Narrow(v[i]);
  }
}

// ---- Chunks of views.

// An activation, or an operand of the wide type.
GPU_INLINE void Load(const ConstMatrixView& m, const Chunk& c, float (&v)[kChunk]) {
  const std::int64_t at = c.row * m.stride + c.col;
  if (m.dtype == DType::kBF16) {
    LoadChunk(static_cast<const BFloat16*>(m.data) + at, c.count, v);
  } else {
    LoadChunk(static_cast<const float*>(m.data) + at, c.count, v);
  }
}
// A frozen weight or table.
GPU_INLINE void LoadFrozen(const ConstMatrixView& m, const Chunk& c, float (&v)[kChunk]) {
  if (m.dtype == DType::kF16) {
    LoadChunk(static_cast<const Float16*>(m.data) + c.row * m.stride + c.col, c.count, v);
  } else {
    Load(m, c, v);
  }
}
GPU_INLINE void StoreTo(const MatrixView& m, const Chunk& c, const float (&v)[kChunk]) {
  const std::int64_t at = c.row * m.stride + c.col;
  if (m.dtype == DType::kBF16) {
    StoreChunk(static_cast<BFloat16*>(m.data) + at, c.count, v);
  } else {
    StoreChunk(static_cast<float*>(m.data) + at, c.count, v);
  }
}
// Load for a view that is also written.
GPU_INLINE void LoadFrom(const MatrixView& m, const Chunk& c, float (&v)[kChunk]) {
  Load(ConstMatrixView{m.data, m.dtype, m.rows, m.cols, m.stride}, c, v);
}

// Element (row, col) of a float32 view.
GPU_INLINE const float& Float(const ConstMatrixView& m, std::int64_t row, std::int64_t col) {
  return static_cast<const float*>(m.data)[row * m.stride + col];
}
GPU_INLINE float& Float(const MatrixView& m, std::int64_t row, std::int64_t col) {
  return static_cast<float*>(m.data)[row * m.stride + col];
}

// Element (row, col) of an activation, or of an operand of the wide type.
GPU_INLINE float Element(const ConstMatrixView& m, std::int64_t row, std::int64_t col) {
  const std::int64_t at = row * m.stride + col;
  return m.dtype == DType::kBF16 ? Widen(static_cast<const BFloat16*>(m.data)[at])
                                 : static_cast<const float*>(m.data)[at];
}
GPU_INLINE void SetElement(const MatrixView& m, std::int64_t row, std::int64_t col, float value) {
  const std::int64_t at = row * m.stride + col;
  if (m.dtype == DType::kBF16) {
    static_cast<BFloat16*>(m.data)[at] = Narrow(value);
  } else {
    static_cast<float*>(m.data)[at] = value;
  }
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ELEMENTS_H_
