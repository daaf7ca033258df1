// A kernel for each instruction of gpu.h that the model of a GPU has in C++:
// tests/scripts/ptx_test.py reads what nvcc makes of them.
#include "backend/cuda/gpu.h"

namespace qlora::cuda {

extern "C" {

__global__ void NarrowSample(float a, std::uint16_t* out) { out[0] = Narrow(a).bits; }
__global__ void WidenSample(std::uint16_t a, float* out) { out[0] = Widen(Float16{a}); }
__global__ void PackSample(float a, float b, std::uint32_t* out) { out[0] = PackBf16x2(a, b); }

__global__ void LoadMatrixSample(std::uint32_t* out) {
  GPU_DYNAMIC_SHARED(row);
  std::uint32_t r[4];
  LdMatrixX4(r, row);
  for (int i = 0; i < 4; ++i) out[i] = r[i];
}
__global__ void LoadTransposedSample(std::uint32_t* out) {
  GPU_DYNAMIC_SHARED(row);
  std::uint32_t r[4];
  LdMatrixX4Trans(r, row);
  for (int i = 0; i < 4; ++i) out[i] = r[i];
}

__global__ void MultiplySample(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d,
                               std::uint32_t e, std::uint32_t f, float g, float h, float i, float j,
                               float* out) {
  float sums[4] = {g, h, i, j};
  MmaBf16(sums, {a, b, c, d}, e, f);
  for (int n = 0; n < 4; ++n) out[n] = sums[n];
}

__global__ void CopySample(const void* from, int bytes) {
  GPU_DYNAMIC_SHARED(to);
  CpAsync16(to, from, bytes);
  CpAsyncCommit();
  CpAsyncWait<1>();
}

}  // extern "C"

}  // namespace qlora::cuda
