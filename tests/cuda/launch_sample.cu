#include "backend/cuda/gpu.h"
#include "cuda/launch_sample.h"

namespace qlora::cuda {
namespace {

__global__ void __launch_bounds__(32) SampleKernel(int) {}

}  // namespace

void LaunchSample(unsigned blocks, std::size_t shared) {
  Launch("Sample", SampleKernel, blocks, 32, shared, nullptr, 1);
}

}  // namespace qlora::cuda
