// The names of a GPU for kernels that are compiled as C++: included by backend/cuda/gpu.h where the
// compiler is not nvcc. The model behind them is in model.h.
#ifndef QLORA_TESTS_GPU_HOST_HOST_GPU_H_
#define QLORA_TESTS_GPU_HOST_HOST_GPU_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cuda/stream.h"
#include "gpu_host/model.h"
#include "qlora/tensor.h"

#define GPU_INLINE inline
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define threadIdx (::gpu_host::thread->thread_idx)
#define blockIdx (::gpu_host::block.block_idx)
#define blockDim (::gpu_host::block.block_dim)
#define gridDim (::gpu_host::block.grid_dim)
// Shared variables are allocations of their own, so that each access can be checked.
#define GPU_SHARED(type, name, ...)     \
  static char name##_key;               \
  using name##_type = type __VA_ARGS__; \
  name##_type& name =                   \
      *static_cast<name##_type*>(::gpu_host::StaticShared(&name##_key, sizeof(name##_type)))
#define GPU_DYNAMIC_SHARED(name) unsigned char* const name = ::gpu_host::block.shared

using gpu_host::dim3;
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- Barriers and warp collectives.

inline void __syncthreads(gpu_host::Site at = gpu_host::Site::Here()) { gpu_host::SyncThreads(at); }
inline void __syncwarp(unsigned mask = ~0u, gpu_host::Site at = gpu_host::Site::Here()) {
  gpu_host::Meet({.kind = gpu_host::Collective::kSync, .mask = mask, .at = at});
}
inline unsigned __ballot_sync(unsigned mask, bool vote,
                              gpu_host::Site at = gpu_host::Site::Here()) {
  gpu_host::Exchange mine = {.kind = gpu_host::Collective::kBallot, .mask = mask, .at = at};
  mine.in.word = vote;
  return static_cast<unsigned>(gpu_host::Meet(mine).out[0]);
}
template <typename T>
T __shfl_sync(unsigned mask, T v, int lane, int width = 32,
              gpu_host::Site at = gpu_host::Site::Here()) {
  return gpu_host::Shuffle(gpu_host::Collective::kShuffle, mask, v, lane, width, at);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32,
                  gpu_host::Site at = gpu_host::Site::Here()) {
  return gpu_host::Shuffle(gpu_host::Collective::kXor, mask, v, bits, width, at);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32,
                 gpu_host::Site at = gpu_host::Site::Here()) {
  return gpu_host::Shuffle(gpu_host::Collective::kUp, mask, v, static_cast<int>(by), width, at);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32,
                   gpu_host::Site at = gpu_host::Site::Here()) {
  return gpu_host::Shuffle(gpu_host::Collective::kDown, mask, v, static_cast<int>(by), width, at);
}

// ---- Arithmetic and loads.

// Fibers change only at barriers and collectives, so the operation is plain; the shadow is told,
// and the access within must not be taken for one of the kernel.
template <typename T>
__attribute__((noinline, no_sanitize("thread"))) T atomicAdd(T* p, std::type_identity_t<T> v) {
  gpu_host::ShadowAtomic(p, sizeof(T));
  const T old = *p;
  *p = old + v;
  return old;
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
// The bytes of b : a that the low four nibbles of `selector` choose; byte 0 is the lowest of a.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    r |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return r;
}
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
// Products and sums that are never contracted (kernels compile with -ffp-contract=off here).
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
using std::max;
using std::min;

namespace qlora::cuda {

template <typename... Params, typename... Args>
void Launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block_dim,
            std::size_t shared, Stream stream, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  // By value, as CUDA copies the arguments of a kernel when it is launched.
  gpu_host::Enqueue(
      {name, grid, block_dim, shared,
       [kernel, ... values = static_cast<std::decay_t<Params>>(args)] { kernel(values...); }},
      gpu_host::QueueOf(stream));
}

inline float Widen(BFloat16 v) { return std::bit_cast<float>(std::uint32_t{v.bits} << 16); }
inline float Widen(Float16 v) { return ToFloat(v); }
inline BFloat16 Narrow(float f) {
  const auto bits = std::bit_cast<std::uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};  // the only NaN of cvt.rn.bf16.f32
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}
inline std::uint32_t PackBf16x2(float low, float high) {
  return Narrow(low).bits | std::uint32_t{Narrow(high).bits} << 16;
}
inline void CpAsync16(void* shared, const void* global, int bytes,
                      gpu_host::Site at = gpu_host::Site::Here()) {
  gpu_host::CpAsync(shared, global, bytes, at);
}
inline void CpAsyncCommit() { gpu_host::CpCommit(); }
template <int kLeft>
void CpAsyncWait() {
  gpu_host::CpWait(kLeft);
}
inline void LdMatrix(gpu_host::Collective kind, std::uint32_t (&r)[4], const void* row,
                     gpu_host::Site at) {
  gpu_host::Exchange mine = {.kind = kind, .mask = ~0u, .at = at};
  mine.in.row = row;
  std::memcpy(r, gpu_host::Meet(mine).out, sizeof(r));
}
inline void LdMatrixX4(std::uint32_t (&r)[4], const void* row,
                       gpu_host::Site at = gpu_host::Site::Here()) {
  LdMatrix(gpu_host::Collective::kLdMatrix, r, row, at);
}
inline void LdMatrixX4Trans(std::uint32_t (&r)[4], const void* row,
                            gpu_host::Site at = gpu_host::Site::Here()) {
  LdMatrix(gpu_host::Collective::kLdMatrixTrans, r, row, at);
}
inline void MmaBf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                    gpu_host::Site at = gpu_host::Site::Here()) {
  gpu_host::Exchange mine = {.kind = gpu_host::Collective::kMma, .mask = ~0u, .at = at};
  std::memcpy(mine.in.mma.a, a, sizeof(a));
  mine.in.mma.b[0] = b0;
  mine.in.mma.b[1] = b1;
  std::memcpy(mine.in.mma.d, d, sizeof(d));
  std::memcpy(d, gpu_host::Meet(mine).out, sizeof(d));
}

}  // namespace qlora::cuda

#endif  // QLORA_TESTS_GPU_HOST_HOST_GPU_H_
