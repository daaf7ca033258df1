// Runtime, Blas and AttentionLibrary on a GPU, with the CUDA toolkit.
#ifndef QLORA_BACKEND_CUDA_DEVICE_DEVICE_RUNTIME_H_
#define QLORA_BACKEND_CUDA_DEVICE_DEVICE_RUNTIME_H_

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/blas.h"
#include "backend/cuda/runtime.h"

namespace qlora::cuda {

// The first device that the driver shows, which is the one that is used.
CudaReport DescribeDevice();
// Errors: InvalidInput where there is none.
std::unique_ptr<Runtime> MakeDeviceRuntime();
// cuBLASLt, loaded when it is asked for. Errors: InvalidInput where the library is not found.
std::unique_ptr<Blas> MakeDeviceBlas();
// cuDNN, loaded when it is asked for; null where it cannot be used, and where the environment
// variable QLORA_CUDA_ATTENTION is "own". Errors: InvalidInput for another value but "cudnn".
std::unique_ptr<AttentionLibrary> MakeDeviceAttention();
// DescribeCudaAttention of backend.h.
std::string DescribeAttention();

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_DEVICE_RUNTIME_H_
