// The CUDA backend on a machine without a GPU: it plans, and runs nothing.
#include <gmock/gmock.h>

#include "backend/backend_factory.h"
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
  Context context(1);
  EXPECT_THROW(BackendFactory::ForPlan(context, "gpu"), Error);
  for (const char* host : {"auto", "cpu"}) {
    const BackendFactory::Ptr cpu = BackendFactory::ForPlan(context, host);
    EXPECT_EQ(cpu->Absence(), "");
    EXPECT_TRUE(IsHost(cpu->Make(context, DType::kF32)->memory()));
  }
  const BackendFactory::Ptr cuda = BackendFactory::ForPlan(context, "cuda");
  EXPECT_EQ(cuda->PreferredActivation(), DType::kBF16);
  EXPECT_EQ(cuda->Absence(), DescribeCuda().problem);
  if (cuda->Absence().empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_FALSE(IsHost(cuda->Make(context, DType::kBF16)->memory()));
  EXPECT_THROW(BackendFactory::ForJob(context, "cuda"), Error);
}

TEST(BackendFactory, AContextDecidesBeforeTheOption) {
  Context context(1);
  const BackendFactory::Ptr given = BackendFactory::Of("cpu");
  BackendFactory::GiveTo(context, given);
  EXPECT_EQ(BackendFactory::ForJob(context, "cuda"), given);
  EXPECT_EQ(BackendFactory::ForPlan(context, "cuda"), given);
  BackendFactory::GiveTo(context, nullptr);
  EXPECT_NE(BackendFactory::ForJob(context, "cpu"), given);
}

}  // namespace
}  // namespace qlora
