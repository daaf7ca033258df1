#include "memory_table.h"

#include <gtest/gtest.h>

#include <iterator>

namespace qlora {
namespace {

// From the shapes of the models, and 4 + 32 / B or 4 + 8 / B + 32 / (256 B) bits, worked out by
// hand.
TEST(MemoryTable, ModelsInBlocksOf64) {
  struct Expected {
    std::int64_t parameters, linear;
    double fp16, single, twice, total, ratio, single_ratio;  // GB
  };
  const Expected expected[] = {
      {6'738'415'616, 6'476'005'376, 13.477, 3.643, 3.341, 3.866, 3.486, 3.233},
      {13'015'864'320, 12'687'769'600, 26.032, 7.137, 6.545, 7.202, 3.614, 3.340},
      {32'528'943'616, 32'102'154'240, 65.058, 18.057, 16.561, 17.416, 3.736, 3.440},
      {65'285'660'672, 64'760'053'760, 130.571, 36.428, 33.408, 34.462, 3.789, 3.484},
      {68'976'648'192, 68'451'041'280, 137.953, 38.504, 35.312, 36.366, 3.794, 3.487}};
  const std::vector<MemoryRow> table = MemoryTable(64);
  ASSERT_EQ(table.size(), std::size(expected));
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Expected& e = expected[i];
    const auto& [single, twice] = table[i];
    EXPECT_EQ(twice.parameters, e.parameters);
    EXPECT_EQ(twice.linear_parameters, e.linear);
    EXPECT_NEAR(twice.fp16_bytes / 1e9, e.fp16, 5.1e-4);
    EXPECT_NEAR(single.linear_bytes / 1e9, e.single, 5.1e-4);
    EXPECT_NEAR(twice.linear_bytes / 1e9, e.twice, 5.1e-4);
    EXPECT_NEAR(twice.total_bytes / 1e9, e.total, 5.1e-4);
    EXPECT_NEAR(twice.ratio(), e.ratio, 5.1e-4);
    EXPECT_NEAR(single.ratio(), e.single_ratio, 5.1e-4);
  }
}

}  // namespace
}  // namespace qlora
