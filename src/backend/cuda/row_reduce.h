// Rows that several threads work on together: a warp for short rows, a whole block for others. Sums
// are added in an order that depends on the shape alone. For kernels only.
#ifndef QLORA_BACKEND_CUDA_ROW_REDUCE_H_
#define QLORA_BACKEND_CUDA_ROW_REDUCE_H_

#include "backend/cuda/elements.h"

namespace qlora::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = ~0u;

// Threads of a team for rows of `cols` columns, and blocks of kThreads for `rows` rows.
inline int TeamSize(std::int64_t cols) { return cols <= 4 * kWarp * kChunk ? kWarp : kThreads; }
inline unsigned TeamBlocks(std::int64_t rows, int size) {
  const std::int64_t teams = kThreads / size;
  return static_cast<unsigned>((rows + teams - 1) / teams);
}

struct Team {
  std::int64_t row = 0;
  int rank = 0;  // of this thread
  int size = 0;
};
GPU_INLINE Team TeamOf(int size) {
  Team team;
  team.size = size;
  team.row = blockIdx.x;
  team.rank = static_cast<int>(threadIdx.x);
  if (size == kWarp) {
    team.row = team.row * (kThreads / kWarp) + threadIdx.x / kWarp;
    team.rank %= kWarp;
  }
  return team;
}

// fn(chunk) for the chunks of this thread in a row of `cols` columns, less than 2^31: the compiler
// divides to count the steps, which is slow for 64-bit integers.
template <typename Fn>
GPU_INLINE void ForChunks(const Team& team, std::int64_t cols, const Fn& fn) {
  const int end = static_cast<int>(cols);
  for (int col = team.rank * kChunk; col < end; col += team.size * kChunk) {
    fn(Chunk{team.row, col, end - col < kChunk ? end - col : kChunk});
  }
}

struct Plus {
  template <typename T>
  GPU_INLINE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  GPU_INLINE float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename T, typename Join>
GPU_INLINE T WarpJoin(T v, Join join) {
  for (int step = kWarp / 2; step > 0; step /= 2) v = join(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

// The values of all kBlock threads joined, in every thread. All of them call it.
template <int kBlock, typename T, typename Join>
GPU_INLINE T BlockJoin(T v, Join join) {
  GPU_SHARED(T, partial, [kBlock / kWarp]);
  v = WarpJoin(v, join);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = v;
  __syncthreads();
  v = partial[0];
  for (int i = 1; i < kBlock / kWarp; ++i) v = join(v, partial[i]);
  __syncthreads();  // before the next call writes
  return v;
}

template <typename Join>
GPU_INLINE float TeamJoin(const Team& team, float v, Join join) {
  return team.size == kWarp ? WarpJoin(v, join) : BlockJoin<kThreads>(v, join);
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ROW_REDUCE_H_
