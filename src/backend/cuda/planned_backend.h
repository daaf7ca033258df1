// The part of the CUDA backend that plans a run: sizes and choices, on any machine.
//
// Workspace, chunks of the head, the part to recompute, and the memory of context and libraries are
// computed without a GPU. This file, workspace.h and attention_room.h are compiled into every
// program; the CUDA backend inherits them, and MakeAbsentCudaBackend is the backend that plans use
// on machines without a GPU.
#ifndef QLORA_BACKEND_CUDA_PLANNED_BACKEND_H_
#define QLORA_BACKEND_CUDA_PLANNED_BACKEND_H_

#include <cstddef>

#include "backend/backend.h"
#include "backend/cuda/workspace.h"

namespace qlora::cuda {

// The workspace of cuBLASLt: the size that NVIDIA recommends for Hopper; enough for others.
inline constexpr std::size_t kBlasBytes = std::size_t{32} << 20;

// Device memory that a process holds before it allocates operands: the context with the code of the
// kernels, which differs between drivers and GPUs (an assumption, not measured), and cuBLASLt's.
inline constexpr std::size_t kHeldBytes = 500'000'000 + kBlasBytes;

class PlannedBackend : public Backend {
 public:
  // compute: the operand type of matrix products, kF32 or kBF16. Errors: InvalidInput for another.
  // budget: the budget of WorkSize::kFast.
  PlannedBackend(DType compute, const WorkspaceBudget& budget);

  std::size_t WorkspaceBytes(const BackendLimits& limits) const override;
  const void* Adopt(const void* host, std::size_t bytes, WeightUse use, Carver& carver) override;
  bool Reads(BlockFormat) const override { return false; }
  bool CarriesState() const override { return false; }
  std::size_t PrepackedBytes(const QuantizedView&) const override { return 0; }
  void Prepack(const QuantizedView&, std::byte*) override { RefuseToPrepack(); }
  LayerPart CheapestRecompute() const override;
  std::int64_t HeadChunkRows(std::int64_t vocab, WorkSize size) const override;
  std::int64_t TailColumns(std::int64_t rank) const override;

 protected:
  const WorkspaceBudget& BudgetOf(WorkSize size) const {
    return size == WorkSize::kLean ? kLeanBudget : budget_;
  }

 private:
  DType compute_;
  WorkspaceBudget budget_;
};

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_PLANNED_BACKEND_H_
