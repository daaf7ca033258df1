// Captured ops: they run when they are replayed, on what is in memory then.
#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "cuda/test_device.h"

namespace qlora {
namespace {

constexpr std::int64_t kCapturedValues = 64;

class CudaCapture : public testing::Test {
 protected:
  // Matrix i (1, kCapturedValues) of the device.
  MatrixView At(std::int64_t i) {
    return {arena_.data() + i * kCapturedValues * std::int64_t{sizeof(float)}, DType::kF32, 1,
            kCapturedValues, kCapturedValues};
  }
  void Put(std::int64_t i, float value) {
    Upload(backend_->memory(), std::span<const float>(std::vector<float>(kCapturedValues, value)),
           At(i));
  }
  float Get(std::int64_t i) {
    return Download<float>(backend_->memory(), At(i))[kCapturedValues - 1];
  }
  // y += x, twice.
  OpGraph CaptureSums(std::int64_t x, std::int64_t y, OpGraph last = nullptr) {
    return backend_->Capture(
        [&] {
          backend_->Run(ops::Add{At(x), At(y)});
          backend_->Run(ops::Add{At(x), At(y)});
        },
        std::move(last));
  }

  Context context_{1};
  std::unique_ptr<Backend> backend_ =
      cuda::MakeBackendOn(context_, testing_util::MakeTestDevice(7), DType::kF32);
  Arena arena_{4 * kCapturedValues * sizeof(float), backend_->memory()};
};

TEST_F(CudaCapture, RunsWhenItIsReplayedOnWhatIsThere) {
  Put(0, 1);
  Put(1, 10);
  const OpGraph graph = CaptureSums(0, 1);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(Get(1), 10);
  backend_->Replay(graph);
  EXPECT_EQ(Get(1), 12);
  Put(0, 5);
  backend_->Replay(graph);
  backend_->Run(ops::Add{At(0), At(1)});
  backend_->Replay(graph);
  EXPECT_EQ(Get(1), 37);
}

// While the earlier one, which is gone, may still be running.
TEST_F(CudaCapture, TakesThePlaceOfAnEarlierOne) {
  Put(0, 1);
  for (const std::int64_t i : {1, 2, 3}) Put(i, 0);
  OpGraph graph;
  for (const std::int64_t y : {1, 2, 3}) {
    graph = CaptureSums(0, y, std::move(graph));
    ASSERT_NE(graph, nullptr);
    backend_->Replay(graph);
  }
  for (const std::int64_t i : {1, 2, 3}) EXPECT_EQ(Get(i), 2) << i;
}

TEST_F(CudaCapture, AnErrorLeavesNothingCaptured) {
  Put(0, 1);
  Put(1, 0);
  const OpGraph graph = backend_->Capture(
      [&] {
        backend_->Run(ops::Add{At(0), At(1)});
        throw Error(ErrorCode::kRuntime, "an op that cannot be captured");
      },
      nullptr);
  EXPECT_EQ(graph, nullptr);
  backend_->Run(ops::Add{At(0), At(1)});
  EXPECT_EQ(Get(1), 1);
}

}  // namespace
}  // namespace qlora
