// The CUDA backend on a machine without a GPU: it plans, and runs nothing.
#include <gmock/gmock.h>

#include "backend/backend.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST(AbsentCuda, PlansSizesAndChoices) {
  const std::unique_ptr<Backend> backend = MakeAbsentCudaBackend(DType::kBF16);
  EXPECT_FALSE(IsHost(backend->memory()));
  EXPECT_GT(backend->memory().Held(), std::size_t{100} << 20);
  EXPECT_EQ(backend->CheapestRecompute(), LayerPart::kMlp);
  EXPECT_EQ(backend->HeadChunkRows(128256, WorkSize::kFast) % 64, 0);
  BackendLimits limits = {.rows = 512, .features = 4096, .vocab_rows = 64, .vocab = 32000};
  const std::size_t forward = backend->WorkspaceBytes(limits);
  EXPECT_GT(forward, 0u);
  limits.gradient_rows = limits.gradient_length = 512;
  EXPECT_GT(backend->WorkspaceBytes(limits), forward);
}

TEST(AbsentCuda, ALeanRunTakesLess) {
  const std::unique_ptr<Backend> backend = MakeAbsentCudaBackend(DType::kBF16);
  BackendLimits limits = {.rows = 2048,
                          .features = 28672,
                          .in_features = 14336,
                          .vocab_rows = 128,
                          .vocab = 128256,
                          .lora_rank = 48,
                          .heads = 32,
                          .kv_heads = 8,
                          .head_dim = 128,
                          .gradient_rows = 2048,
                          .gradient_length = 2048};
  const std::size_t fast = backend->WorkspaceBytes(limits);
  EXPECT_EQ(backend->HeadChunkRows(128256, WorkSize::kFast), 1024);
  limits.work_size = WorkSize::kLean;
  EXPECT_LT(backend->WorkspaceBytes(limits), std::min(fast, std::size_t{180'000'000}));
  EXPECT_EQ(backend->HeadChunkRows(128256, WorkSize::kLean), 128);
}

// The gradient by cuDNN takes 12 bytes for each row and feature of the queries, of one sequence at
// a time; a lean run has none of this and uses own kernels for sequences that do not fit.
TEST(AbsentCuda, CountsTheRoomOfALibraryOfAttention) {
  const std::unique_ptr<Backend> backend = MakeAbsentCudaBackend(DType::kBF16);
  BackendLimits limits = {.rows = 65536,
                          .features = 28672,
                          .in_features = 14336,
                          .vocab_rows = 128,
                          .vocab = 128256,
                          .lora_rank = 48,
                          .heads = 32,
                          .kv_heads = 8,
                          .head_dim = 128,
                          .gradient_rows = 65536,
                          .gradient_length = 65536};
  const std::size_t room = std::size_t{65536} * 4096 * 12;
  EXPECT_GT(backend->WorkspaceBytes(limits), room);
  EXPECT_LT(backend->WorkspaceBytes(limits), room + (std::size_t{20} << 20));
  EXPECT_LT(MakeAbsentCudaBackend(DType::kF32)->WorkspaceBytes(limits), room);
  limits.work_size = WorkSize::kLean;
  EXPECT_LT(backend->WorkspaceBytes(limits), room / 4);
  limits.work_size = WorkSize::kFast;
  limits.gradient_length = 4096;
  EXPECT_LT(backend->WorkspaceBytes(limits), room / 2);
}

TEST(AbsentCuda, CountsAdoptedWeightsAsCopies) {
  const std::unique_ptr<Backend> backend = MakeAbsentCudaBackend(DType::kBF16);
  const std::vector<float> weight(100);
  Carver plan;
  EXPECT_EQ(backend->Adopt(weight.data(), 400, WeightUse::kTraining, plan), nullptr);
  EXPECT_EQ(plan.bytes(), 448u);
}

TEST(AbsentCuda, HasNoMemoryAndRunsNoOp) {
  const std::unique_ptr<Backend> backend = MakeAbsentCudaBackend(DType::kF32);
  const auto expect_refusal = [](const auto& use) {
    try {
      use();
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      EXPECT_THAT(error.what(), HasSubstr("device cuda: "));
    }
  };
  float value = 0;
  expect_refusal([&] { Arena(1, backend->memory()); });
  expect_refusal([&] { backend->memory().Upload(&value, &value, sizeof(value)); });
  expect_refusal([&] { backend->memory().Download(&value, &value, sizeof(value)); });
  expect_refusal([&] { backend->Reserve({}); });
  expect_refusal([&] { backend->Run(ops::Zero{{&value, DType::kF32, 1, 1, 1}}); });
}

TEST(AbsentCuda, RefusesOtherTypes) { EXPECT_THROW(MakeAbsentCudaBackend(DType::kF64), Error); }

TEST(PlannedDevice, NeedsNoGpu) {
  EXPECT_EQ(ParsePlannedDevice("cuda"), Device::kCuda);
  EXPECT_EQ(ParsePlannedDevice("auto"), Device::kCpu);
  EXPECT_THROW(ParsePlannedDevice("gpu"), Error);
  Context context(1);
  const std::unique_ptr<Backend> cpu = PlannedBackendsOf(Device::kCpu)(context, DType::kF32);
  EXPECT_TRUE(IsHost(cpu->memory()));
  if (DescribeCuda().problem.empty()) GTEST_SKIP() << "this machine has a GPU";
  const std::unique_ptr<Backend> cuda = PlannedBackendsOf(Device::kCuda)(context, DType::kBF16);
  EXPECT_FALSE(IsHost(cuda->memory()));
}

}  // namespace
}  // namespace qlora
