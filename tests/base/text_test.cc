#include "base/text.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(TextTest, FirstBytesEndBetweenCharacters) {
  const std::string_view text = "a\u00e9\u20ac\U0001F600";  // of 1, 2, 3 and 4 bytes
  const std::vector<std::size_t> ends = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (std::size_t bytes = 0; bytes < ends.size(); ++bytes) {
    EXPECT_EQ(FirstBytes(text, bytes), text.substr(0, ends[bytes])) << bytes;
  }
  EXPECT_EQ(FirstBytes("", 3), "");
}

}  // namespace
}  // namespace qlora
