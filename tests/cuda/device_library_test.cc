// Libraries that are opened at run time.
#include <gmock/gmock.h>

#include "backend/cuda/device/dynamic_library.h"

namespace qlora::cuda {
namespace {

using testing::HasSubstr;

TEST(DeviceLibrary, SaysWhichFileWasLoaded) {
  const OpenedLibrary opened = OpenLibrary("libm.so.6");
  ASSERT_NE(opened.handle, nullptr) << opened.problem;
  EXPECT_THAT(opened.file, HasSubstr("/libm.so.6"));
  EXPECT_EQ(opened.problem, "");
  double (*cosine)(double) = nullptr;
  EXPECT_TRUE(Resolve(opened.handle, "cos", cosine));
  EXPECT_FALSE(Resolve(opened.handle, "qlora_nothing", cosine));
}

TEST(DeviceLibrary, SaysWhereItLooked) {
  const OpenedLibrary opened = OpenLibrary("libqlora-nothing.so.1");
  EXPECT_EQ(opened.handle, nullptr);
  EXPECT_THAT(opened.problem, HasSubstr("libqlora-nothing.so.1 was not loaded"));
  EXPECT_THAT(opened.problem, HasSubstr("LD_LIBRARY_PATH ("));
  EXPECT_THAT(opened.problem, HasSubstr("/usr/local/cuda/lib64"));
  EXPECT_THAT(opened.problem, HasSubstr("No such file"));
}

}  // namespace
}  // namespace qlora::cuda
