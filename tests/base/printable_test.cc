#include "base/printable.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(Printable, FormatsBytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(std::size_t{300} << 20), "300 MiB");
  EXPECT_EQ(FormatBytes((std::size_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(FormatBytes(std::size_t{3435973837}), "3.20 GiB");
}

}  // namespace
}  // namespace qlora
