// What the backend allocates is what it plans, with and without a GPU.
#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "cuda/test_device.h"

namespace qlora {
namespace {

BackendLimits LimitsOfTraining() {
  return {.rows = 96,
          .features = 448,
          .vocab_rows = 64,
          .vocab = 1000,
          .lora_rank = 12,
          .heads = 8,
          .kv_heads = 2,
          .head_dim = 16,
          .gradient_rows = 96,
          .gradient_length = 48};
}

TEST(CudaPlan, ReserveAllocatesWhatTheAbsentBackendPlans) {
  Context context(1);
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto planned = MakeAbsentCudaBackend(compute);
    const auto backend = cuda::MakeBackendOn(context, testing_util::MakeTestDevice(1), compute);
    EXPECT_EQ(planned->memory().Held(), backend->memory().Held());
    const std::optional<std::size_t> before = testing_util::AllocatedBytes();
    backend->Reserve(LimitsOfTraining());
    if (!before) GTEST_SKIP() << "a GPU rounds allocations up";
    EXPECT_EQ(*testing_util::AllocatedBytes() - *before,
              planned->WorkspaceBytes(LimitsOfTraining()));
  }
}

}  // namespace
}  // namespace qlora
