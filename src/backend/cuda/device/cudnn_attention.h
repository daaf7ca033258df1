// AttentionLibrary by cuDNN.
#ifndef QLORA_BACKEND_CUDA_DEVICE_CUDNN_ATTENTION_H_
#define QLORA_BACKEND_CUDA_DEVICE_CUDNN_ATTENTION_H_

#include <memory>

#include "backend/cuda/attention.h"
#include "backend/cuda/device/cudnn.h"

namespace qlora::cuda {

// required: an op that cuDNN does not run is an error (Runtime) that says why, in place of false.
// Errors: OutOfMemory; Runtime where cuDNN does not start.
std::unique_ptr<AttentionLibrary> MakeCudnnAttention(const Cudnn& cudnn, bool required);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_CUDNN_ATTENTION_H_
