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
// Errors: the error of CudaReport.
std::unique_ptr<Runtime> MakeDeviceRuntime();
// cuBLASLt, loaded when it is asked for. Errors: Runtime where the library is not found,
// OutOfMemory.
std::unique_ptr<Blas> MakeDeviceBlas();
// Names the file of cuBLASLt that is loaded, and its version. Errors: as MakeDeviceBlas.
std::string DescribeBlas();

// cuDNN, loaded when it is asked for. The environment variable QLORA_CUDA_ATTENTION says who
// computes the attention that AttentionLibrary is given, for comparisons of the two:
//   not set  cuDNN where it can, own kernels elsewhere; null where cuDNN cannot be used
//   cudnn    cuDNN; whatever keeps it from an op is an error (Runtime), here or when the op runs
//   own      own kernels; null
// Errors: InvalidInput for another value.
std::unique_ptr<AttentionLibrary> MakeDeviceAttention();
// Names the kernels that a run would use, and the reason when cuDNN's are not used. Makes plans for
// the passes of a common model, which takes seconds.
std::string DescribeAttention();

// Throws for a value of cudaError_t that is not success: OutOfMemory, or Runtime.
void CheckCuda(const char* what, int error);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_DEVICE_RUNTIME_H_
