// What the guarded backend of other tests catches.
#include "backend/guarded_backend.h"

#include <gtest/gtest.h>

#include "qlora/error.h"
#include "test_build.h"

namespace qlora {
namespace {

class GuardedBackendTest : public testing::Test {
 protected:
  Context context_{2};
  std::unique_ptr<Backend> backend_ = GuardedBackends()->Make(context_, DType::kF32);
  Arena arena_ = Arena(2 * 4096, backend_->memory());
  const MatrixView inside_ = {arena_.data(), DType::kF32, 1, 4, 4};
};

TEST_F(GuardedBackendTest, RunsOpsAndTransfers) {
  Upload(backend_->memory(), std::span<const float>({1, 2, 3, 4}), inside_);
  backend_->Run(ops::Add{inside_, {arena_.data() + 4096, DType::kF32, 1, 4, 4}});
  backend_->Run(ops::Add{{arena_.data() + 4096, DType::kF32, 1, 4, 4}, inside_});
  EXPECT_EQ(Download<float>(backend_->memory(), inside_), std::vector<float>({2, 4, 6, 8}));
  const MatrixView sum = {arena_.data() + 4096, DType::kF64, 1, 1, 1};
  EXPECT_EQ(ReadSumOfSquares(*backend_, inside_, sum), 4 + 16 + 36 + 64);
}

TEST_F(GuardedBackendTest, RefusesOperandsAndTransfersElsewhere) {
  std::vector<float> host(4);
  EXPECT_THROW(backend_->Run(ops::Copy{MakeView(host.data(), 1, 4), inside_}), Error);
  EXPECT_THROW(backend_->Run(ops::Copy{inside_, MakeView(host.data(), 1, 4)}), Error);
  const MatrixView beyond = {arena_.data() + 2 * 4096 - 4, DType::kF32, 1, 4, 4};
  EXPECT_THROW(backend_->Run(ops::Zero{beyond}), Error);
  EXPECT_THROW(backend_->memory().Upload(host.data(), host.data(), 4), Error);
  EXPECT_THROW(backend_->memory().Upload(inside_.data, inside_.data, 4), Error);
  EXPECT_THROW(backend_->memory().Download(inside_.data, inside_.data, 4), Error);
}

TEST_F(GuardedBackendTest, AdoptedWeightsAreCopies) {
  const std::vector<float> host = {1, 2, 3, 4};
  Carver carver(arena_);
  const void* adopted = backend_->Adopt(host.data(), 16, WeightUse::kTraining, carver);
  EXPECT_EQ(adopted, arena_.data());
  EXPECT_EQ(Download<float>(backend_->memory(), inside_), host);
}

TEST_F(GuardedBackendTest, TouchesByTheHostAreFaults) {
  if (Sanitized()) GTEST_SKIP() << "sanitizers report the fault in their own way";
  EXPECT_DEATH(*inside_.Row<float>(0) = 1, "");
  EXPECT_DEATH(std::exit(static_cast<int>(*inside_.Row<volatile float>(0))), "");
}

}  // namespace
}  // namespace qlora
