#include <cuda_runtime_api.h>

#include "backend/cuda/device/kernel_image.h"

namespace qlora::cuda {
namespace {

// Compiled for the architectures of all other kernels: where it can be loaded, so can they.
__global__ __launch_bounds__(32) void Nothing() {}

}  // namespace

int LoadKernelImage() {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, Nothing);
}

}  // namespace qlora::cuda
