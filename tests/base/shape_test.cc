#include "base/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

std::string Refused(const std::vector<std::int64_t>& shape) {
  try {
    CountValues("w", shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    return error.what();
  }
  return "";
}

TEST(Shape, CountsItsValues) {
  EXPECT_EQ(CountValues("w", {}), 1);
  EXPECT_EQ(CountValues("w", std::vector<std::int64_t>{3, 0, 5}), 0);
  EXPECT_EQ(CountValues("w", std::vector<std::int64_t>{1 << 20, 1, 1 << 28}), kMostValues);
}

TEST(Shape, ProductsThatWrapAreRefused) {
  EXPECT_EQ(Refused({(std::int64_t{1} << 61) + 1, 8}),
            "w: shape (2305843009213693953, 8) has more than 2^48 values");
  EXPECT_THAT(Refused({std::int64_t{1} << 62, 4, 0}), HasSubstr("2^48"));
  EXPECT_THAT(Refused({2, -3}), HasSubstr("shape (2, -3) has a size below 0"));
}

}  // namespace
}  // namespace qlora
