// The one header with the syntax and the instructions of a GPU. Kernels (*.cu) are written against
// it once and compile twice: with nvcc for a GPU, and as C++ against the host model of a block
// (tests/gpu_host), which runs them on any processor and checks them.
//
// Names: __global__, __launch_bounds__, threadIdx, __syncthreads, __shfl_xor_sync ... are CUDA's in
// both. Beyond them:
//   GPU_INLINE                     a function of the device
//   GPU_SHARED(type, name, [n])    a variable in the shared memory of the block
//   GPU_DYNAMIC_SHARED(name)       the bytes of shared memory that the launch asked for
//   Launch(name, kernel, grid, block, shared bytes, stream, arguments...)
//   Widen, Narrow, PackBf16x2      conversions of 16-bit types
//   CpAsync*, LdMatrix*, MmaBf16   asynchronous copies and the matrix unit
#ifndef QLORA_BACKEND_CUDA_GPU_H_
#define QLORA_BACKEND_CUDA_GPU_H_

#include <cstddef>
#include <cstdint>

#include "backend/cuda/stream.h"
#include "qlora/tensor.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#define GPU_INLINE __device__ __forceinline__
#define GPU_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#define GPU_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

namespace qlora::cuda {

// Throws Runtime for an error of CUDA, with its text and the name of the kernel that was launched.
void CheckLaunch(const char* name, int error);

inline constexpr std::size_t kSharedWithoutRequest = 48 << 10;

// Queues the kernel. A grid without blocks is nothing to do.
template <typename... Params, typename... Args>
void Launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared,
            Stream stream, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared > kSharedWithoutRequest) {
    CheckLaunch(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared)));
  }
  kernel<<<grid, block, shared, static_cast<cudaStream_t>(stream)>>>(static_cast<Params>(args)...);
  CheckLaunch(name, cudaGetLastError());
}

GPU_INLINE float Widen(BFloat16 v) { return __uint_as_float(std::uint32_t{v.bits} << 16); }
GPU_INLINE float Widen(Float16 v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
  return f;
}
GPU_INLINE BFloat16 Narrow(float f) {
  BFloat16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));
  return r;
}
// The first value in the lower half.
GPU_INLINE std::uint32_t PackBf16x2(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

GPU_INLINE std::uint32_t SharedAddress(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
// Copies `bytes` (0 ... 16) to shared memory and fills the rest of the 16 with zeros. Both
// addresses are aligned to 16, and `global` is valid even when bytes is 0.
GPU_INLINE void CpAsync16(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(global), "r"(bytes)
               : "memory");
}
GPU_INLINE void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of copies of this thread but the newest kLeft.
template <int kLeft>
GPU_INLINE void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
// Four matrices of 8 x 8 16-bit values. Lane l gives the address of row l % 8 of matrix l / 8 and
// receives, of each, columns 2 (l % 4) + {0, 1} of row l / 4 (of its transpose).
GPU_INLINE void LdMatrixX4(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
GPU_INLINE void LdMatrixX4Trans(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
// d(16, 8; float32) += a(16, 16) b(16, 8). With g = lane / 4, t = lane % 4:
//   a[r]: row g + 8 (r & 1), columns 2t + 8 (r >> 1) + {0, 1}
//   b[r]: rows 2t + 8r + {0, 1}, column g
//   d[r]: row g + 8 (r >> 1), column 2t + (r & 1)
GPU_INLINE void MmaBf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                        std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace qlora::cuda

#else
#include "gpu_host/host_gpu.h"
#endif

#endif  // QLORA_BACKEND_CUDA_GPU_H_
