// A launch through backend/cuda/gpu.h as nvcc compiles it.
#ifndef QLORA_TESTS_CUDA_LAUNCH_SAMPLE_H_
#define QLORA_TESTS_CUDA_LAUNCH_SAMPLE_H_

#include <cstddef>

namespace qlora::cuda {

// shared: bytes of shared memory.
void LaunchSample(unsigned blocks, std::size_t shared);

}  // namespace qlora::cuda

#endif  // QLORA_TESTS_CUDA_LAUNCH_SAMPLE_H_
