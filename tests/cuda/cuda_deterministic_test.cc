// Two backends that share a device, of which one is deterministic.
#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/arena.h"
#include "cuda/test_device.h"

namespace qlora::testing_util {
namespace {

using testing::ElementsAre;

class RecordingBlas final : public cuda::Blas {
 public:
  RecordingBlas(std::unique_ptr<cuda::Blas> blas, std::vector<bool>& asked)
      : blas_(std::move(blas)), asked_(asked) {}
  void Run(cuda::Stream stream, const cuda::Gemm& gemm) override {
    asked_.push_back(gemm.deterministic);
    blas_->Run(stream, gemm);
  }

 private:
  std::unique_ptr<cuda::Blas> blas_;
  std::vector<bool>& asked_;
};

TEST(CudaDeterministic, IsOfABackendAndNotOfItsDevice) {
  std::vector<bool> asked;
  const auto device = std::make_shared<cuda::Device>(
      MakeTestRuntime(0), std::make_unique<RecordingBlas>(MakeTestBlas(), asked));
  Context context(1);
  Arena arena(4096, device->memory());
  Carver carver(arena);
  const MatrixView x = carver.Matrix(DType::kF32, 4, 8);
  const MatrixView dw = carver.Matrix(DType::kF32, 8, 8);
  const auto first = cuda::MakeBackendOn(context, device, DType::kF32);
  const auto second = cuda::MakeBackendOn(context, device, DType::kF32);
  first->SetDeterministic(true);
  second->SetDeterministic(false);
  for (const auto& backend : {first.get(), second.get(), first.get()}) {
    backend->Run(ops::WeightGradient{x, x, dw});
  }
  EXPECT_THAT(asked, ElementsAre(true, false, true));
}

}  // namespace
}  // namespace qlora::testing_util
