// The backend of a GPU. Ops are queued; transfers of memory() wait for them.
//
// Kernels (*.cu, named like the files of cpu/) know gpu.h and operands. Host code knows three
// interfaces: runtime.h (memory, copies, two streams and events), blas.h (matrix products) and
// AttentionLibrary in attention.h. Two worlds implement them:
//
//   device/           the CUDA runtime, cuBLASLt and cuDNN; needs the toolkit
//   tests/gpu_host/   a model of a GPU, which compiles the same kernels as C++: threads are fibers,
//                     and a missing barrier, a race or an access out of bounds is a finding
//
// In the model the streams of ops and of queued copies run apart as far as events allow, and pages
// of the host side of a copy are closed until the copy has run. So a missing event changes results.
//
//   linear.h           products; how adapters, bias and residual become part of them
//   few_rows.h         at most 64 rows, straight from 4-bit weights
//   attention.h        cuDNN or own kernels; attention_groups.h cuts packed sequences
//   workspace.h        the bounded room that ops work in; smaller where memory is scarce (WorkSize)
//   planned_backend.h  sizes and choices of plans, without a GPU
//   device.h           memory and transfers, which the backends of a device share under locks
//
// All sums have an order that depends on shapes and workspace alone, except gradients of attention
// by cuDNN and large products whose algorithm is found by timing (docs/training.md).
// scripts/gpu_check.sh runs the tests, compute-sanitizer and benchmarks on a GPU and writes a
// receipt for docs/gpu; scripts/check_kernels.py fails on spills and slow subroutines in the
// machine code.
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
