// The backend of a GPU. Ops are queued; transfers of memory() wait for them.
#ifndef QLORA_BACKEND_CUDA_CUDA_BACKEND_H_
#define QLORA_BACKEND_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/workspace.h"

namespace qlora::cuda {

// compute: the operand type of matrix products, kF32 or kBF16. Errors: InvalidInput for another.
std::unique_ptr<Backend> MakeBackendOn(Context& context, std::shared_ptr<Device> device,
                                       DType compute, const WorkspaceBudget& budget = {});

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_CUDA_BACKEND_H_
