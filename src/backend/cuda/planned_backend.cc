#include "backend/cuda/planned_backend.h"

#include "backend/cuda/kernels.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

[[noreturn]] void ThrowAbsent() {
  ThrowInvalidInput("device cuda: {}; without a GPU a run can be planned, not started",
                    DescribeCuda().problem);
}

// The memory of a GPU that is not there: without a limit, so that max_memory alone is one.
class AbsentMemory final : public Memory {
 public:
  std::byte* Allocate(std::size_t) override { ThrowAbsent(); }
  void Free(std::byte*, std::size_t) noexcept override {}
  void Upload(const void*, void*, std::size_t) override { ThrowAbsent(); }
  void Download(const void*, void*, std::size_t) override { ThrowAbsent(); }
  void Zero(void*, std::size_t) override { ThrowAbsent(); }
  // Larger than any plan, and still small enough that sums of sizes do not overflow.
  std::size_t Available() const override { return std::size_t{1} << 60; }
  std::size_t Held() const override { return kHeldBytes; }
};

class AbsentBackend final : public PlannedBackend {
 public:
  explicit AbsentBackend(DType compute) : PlannedBackend(compute, {}) {}

  Memory& memory() const override { return memory_; }
  OpGraph Capture(const std::function<void()>&, OpGraph) override { return nullptr; }
  void Replay(const OpGraph&) override { RefuseToReplay(); }
  void SetDeterministic(bool) override {}
  void Reserve(const BackendLimits&) override { ThrowAbsent(); }

 private:
  void DoRun(const Op&) override { ThrowAbsent(); }
  QuantizedView DoQuantize(const ConstMatrixView&, const QuantizeOptions&,
                           const MatrixView&) override {
    ThrowAbsent();
  }

  mutable AbsentMemory memory_;
};

}  // namespace

PlannedBackend::PlannedBackend(DType compute, const WorkspaceBudget& budget)
    : compute_(compute), budget_(budget) {
  if (compute != DType::kF32 && compute != DType::kBF16) {
    ThrowInvalidInput("cuda backend: expected compute type F32 or BF16, found {}", NameOf(compute));
  }
}

std::size_t PlannedBackend::WorkspaceBytes(const BackendLimits& limits) const {
  return cuda::WorkspaceBytes(limits, compute_, BudgetOf(limits.work_size));
}

const void* PlannedBackend::Adopt(const void* host, std::size_t bytes, WeightUse, Carver& carver) {
  void* copy = carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes)).data;
  // Always a copy: kernels read memory of the device alone. A null copy is a Carver that only
  // counts.
  if (copy != nullptr) memory().Upload(host, copy, bytes);
  return copy;
}

// Gate and up: products only, where attention has its own work and small outputs.
LayerPart PlannedBackend::CheapestRecompute() const { return LayerPart::kMlp; }

// More rows than on the CPU, because a row of logits is the work of one block of threads, and the
// product that makes dx of the head has few results: 1024 rows of 128k logits and 4096 features are
// 128 tiles of 128 x 256, one for each multiprocessor of a large GPU.
std::int64_t PlannedBackend::HeadChunkRows(std::int64_t vocab, WorkSize size) const {
  return RowsOfLogits(std::int64_t{size == WorkSize::kLean ? 64 : 512} << 20, vocab);
}

// Of u or du, and of a bias. Rows of the model's sizes still begin at lines of the cache.
std::int64_t PlannedBackend::TailColumns(std::int64_t rank) const {
  return CeilDiv(rank + kBiasColumns, kWideRowStep) * kWideRowStep;
}

}  // namespace qlora::cuda

namespace qlora {

std::unique_ptr<Backend> MakeAbsentCudaBackend(DType compute) {
  return std::make_unique<cuda::AbsentBackend>(compute);
}

}  // namespace qlora
