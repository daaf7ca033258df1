// The words of a program about a driver that is too old; run with old_driver.cc as the driver.
#include <gmock/gmock.h>

#include "backend/backend_factory.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST(DeviceOldDriver, IsAnErrorOfTheMachine) {
  const CudaReport report = DescribeCuda();
  EXPECT_THAT(report.problem, HasSubstr("found a driver for CUDA 11.4 ("));
  EXPECT_EQ(report.code, ErrorCode::kRuntime);
  try {
    BackendFactory::Of("cuda");
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRuntime);
    EXPECT_THAT(error.what(), HasSubstr("run on the CPU with device cpu"));
  }
  Context context(1);
  EXPECT_EQ(BackendFactory::ForPlan(context, "cuda")->Absence(), report.problem);
  EXPECT_EQ(BackendFactory::Of("auto")->Absence(), "");
}

}  // namespace
}  // namespace qlora
