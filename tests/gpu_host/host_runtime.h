// Runtime, Blas and AttentionLibrary of the model.
#ifndef QLORA_TESTS_GPU_HOST_HOST_RUNTIME_H_
#define QLORA_TESTS_GPU_HOST_HOST_RUNTIME_H_

#include <memory>

#include "backend/cuda/attention.h"
#include "backend/cuda/blas.h"
#include "backend/cuda/runtime.h"

namespace gpu_host {

// Memory and queue of the model. Findings of kernels are errors (Runtime) of the next call that
// waits. Copies of page-locked memory run as late as kernels do, and the host cannot touch that
// memory before they have run.
std::unique_ptr<qlora::cuda::Runtime> MakeHostRuntime();

// Plain loops over float32. Refuses (Runtime) what cuBLASLt refuses or what would be slow there.
std::unique_ptr<qlora::cuda::Blas> MakeHostBlas();

// The reference in float64, for heads of a multiple of 16. Fills the room with NaN, and refuses
// (Runtime) operands that AttentionLibrary is not given.
std::unique_ptr<qlora::cuda::AttentionLibrary> MakeHostAttention();

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_HOST_RUNTIME_H_
