#include "model/shared_options.h"

#include <gtest/gtest.h>

#include "qlora/error.h"

namespace qlora {
namespace {

TEST(SharedOptions, AutoIsNeverInt8) {
  const BackendFactory::Ptr cpu = BackendFactory::Of("auto");
  EXPECT_EQ(ParsePrecision("auto", *cpu).frozen, FrozenProducts::kFloat);
  EXPECT_EQ(ParsePrecision("int8", *cpu).frozen, FrozenProducts::kInt8Forward);
  EXPECT_EQ(ParsePrecision("int8", *cpu, true).frozen, FrozenProducts::kInt8);
  for (const char* type : {"float32", "bfloat16", "int8"}) {
    EXPECT_STREQ(ComputeTypeOf(ParsePrecision(type, *cpu)), type);
  }
  EXPECT_THROW(ParsePrecision("int4", *cpu), Error);
}

}  // namespace
}  // namespace qlora
