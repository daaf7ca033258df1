// Plans of cuDNN for attention, as far as they can be made without a GPU: cuDNN checks the graphs,
// and proposes and compiles kernels for a device that is described to it. The driver of this test
// is the stub of the toolkit, which stops cuDNN when it loads them.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "backend/cuda/device/attention_plan.h"
#include "qlora/error.h"

namespace qlora::cuda {
namespace {

constexpr const char* kDevice =
    R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536, "multiProcessorCount": 132, "smClockRateKHz": 1980000,
        "memClockRateKHz": 3201000, "l2CacheSize": 62914560, "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
        "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "pciDeviceId": 0,
        "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "isTccDriver": 0,
        "supportCoopLaunch": 1, "deviceVer": 900, "driverVer": 13000,
        "totalGlobalMem": 150754820096, "cudaDeviceId": 0, "targetSMcount": 0,
        "deviceName": "NVIDIA H200"})";

AttentionPlanShape ShapeOf(bool backward, bool windowed, std::int64_t heads, std::int64_t kv_heads,
                           std::int64_t head_dim) {
  const std::int64_t q = heads * head_dim;
  const std::int64_t k = kv_heads * head_dim;
  return {.backward = backward,
          .windowed = windowed,
          .sequences = 4,
          .length = 2048,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .q = q,
          .k = k,
          .v = k,
          .o = q,
          .lse = heads,
          .d_o = q,
          .dq = q,
          .dk = k,
          .dv = k};
}

// What stopped the plan, or empty.
std::string UnsupportedReason(const Cudnn& cudnn, const AttentionPlanShape& shape) {
  try {
    const AttentionPlan plan(cudnn, {.device_json = kDevice}, shape);
    EXPECT_LE(plan.workspace(), 1 << 20);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

class DeviceAttentionPlan : public testing::Test {
 protected:
  void SetUp() override {
    if (!found_.problem.empty()) GTEST_SKIP() << found_.problem;
    if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) GTEST_SKIP() << "no driver, not even a stub";
  }
  // A plan whose kernels were compiled.
  void ExpectPlan(const AttentionPlanShape& shape) {
    const std::string problem = UnsupportedReason(found_.cudnn, shape);
    if (problem.find("cuLibraryLoadData") != std::string::npos) return;
    EXPECT_EQ(problem, "");
  }

  const CudnnSearch found_ = FindCudnn();
};

TEST_F(DeviceAttentionPlan, Forward) { ExpectPlan(ShapeOf(false, false, 14, 2, 64)); }
TEST_F(DeviceAttentionPlan, ForwardOfLargerHeads) {
  ExpectPlan(ShapeOf(false, false, 32, 8, 128));
  ExpectPlan(ShapeOf(false, false, 8, 4, 256));
}
TEST_F(DeviceAttentionPlan, ForwardOfWindows) { ExpectPlan(ShapeOf(false, true, 32, 8, 128)); }
TEST_F(DeviceAttentionPlan, BackwardOfHeadDim256) { ExpectPlan(ShapeOf(true, false, 8, 4, 256)); }
// Plans are made for powers of two; others are valid, too.
TEST_F(DeviceAttentionPlan, OddNumbers) {
  for (const bool backward : {false, true}) {
    AttentionPlanShape shape = ShapeOf(backward, false, 28, 4, 128);
    shape.sequences = 3;
    shape.length = 2047;
    ExpectPlan(shape);
  }
}
TEST_F(DeviceAttentionPlan, BackwardOfGroups) { ExpectPlan(ShapeOf(true, false, 32, 8, 128)); }
// Operands that are columns of one matrix, and a single sequence.
TEST_F(DeviceAttentionPlan, BackwardOfWindows) {
  AttentionPlanShape shape = ShapeOf(true, true, 16, 16, 64);
  shape.sequences = 1;
  for (std::int64_t* stride : {&shape.q, &shape.k, &shape.v, &shape.dq, &shape.dk, &shape.dv}) {
    *stride = 3 * 16 * 64;
  }
  ExpectPlan(shape);
}

// A graph that cuDNN has no kernel for is an error, not a wrong result.
TEST_F(DeviceAttentionPlan, RefusesWhatHasNoKernel) {
  EXPECT_NE(UnsupportedReason(found_.cudnn, ShapeOf(false, false, 2, 1, 12)), "");
}

}  // namespace
}  // namespace qlora::cuda
