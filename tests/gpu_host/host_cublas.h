// cuBLASLt on the host: a table of functions that check what they are given, and multiply as the
// column-major library would, when they are called.
#ifndef QLORA_TESTS_GPU_HOST_HOST_CUBLAS_H_
#define QLORA_TESTS_GPU_HOST_HOST_CUBLAS_H_

#include "backend/cuda/device/cublas.h"

namespace gpu_host {

// One algorithm for a product, by which it is an error to multiply other shapes, strides of the
// result, or alignments.
qlora::cuda::Cublas HostCublas();

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_HOST_CUBLAS_H_
