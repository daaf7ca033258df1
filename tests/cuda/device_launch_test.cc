// What a launch asks the CUDA runtime for. Without a device each launch is an error, which goes
// where errors of launches go.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/launch_sample.h"

namespace {

struct Calls {
  std::vector<int> requests;  // bytes of shared memory that were asked for
  int checks = 0;             // of errors
  cudaError_t answer = cudaSuccess;
};
Calls& TheCalls() {
  static Calls calls;
  return calls;
}

}  // namespace

// In the place of the library's.
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  EXPECT_EQ(attribute, cudaFuncAttributeMaxDynamicSharedMemorySize);
  TheCalls().requests.push_back(value);
  return TheCalls().answer;
}

namespace qlora::cuda {

void CheckLaunch(const char* name, int error) {
  EXPECT_STREQ(name, "Sample");
  ++TheCalls().checks;
  if (TheCalls().answer != cudaSuccess && error == TheCalls().answer) {
    throw std::runtime_error("refused");
  }
}

namespace {

constexpr int kWithoutRequest = 48 << 10;

class DeviceLaunch : public testing::Test {
 protected:
  DeviceLaunch() { TheCalls() = {}; }
};

TEST_F(DeviceLaunch, AsksForMoreSharedMemoryThanEveryKernelHas) {
  LaunchSample(1, 0);
  LaunchSample(1, kWithoutRequest);
  EXPECT_EQ(TheCalls().requests, std::vector<int>());
  EXPECT_EQ(TheCalls().checks, 2);
  LaunchSample(1, kWithoutRequest + 1);
  LaunchSample(1, 99 << 10);
  EXPECT_EQ(TheCalls().requests, (std::vector<int>{kWithoutRequest + 1, 99 << 10}));
  EXPECT_EQ(TheCalls().checks, 6);
}

TEST_F(DeviceLaunch, EndsWhereTheRequestIsRefused) {
  TheCalls().answer = cudaErrorInvalidValue;
  EXPECT_THROW(LaunchSample(1, 300 << 10), std::runtime_error);
  EXPECT_EQ(TheCalls().checks, 1);
}

TEST_F(DeviceLaunch, IsNothingWithoutBlocks) {
  LaunchSample(0, 99 << 10);
  EXPECT_TRUE(TheCalls().requests.empty());
  EXPECT_EQ(TheCalls().checks, 0);
}

}  // namespace
}  // namespace qlora::cuda
