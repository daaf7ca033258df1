#include "terminal/memory_table.h"

#include <gtest/gtest.h>

#include <iterator>

namespace qlora {
namespace {

// From the shapes of the models, and 4 + 32 / B or 4 + 8 / B + 32 / (256 B) bits, worked out by
// hand: 7B, 13B, 33B, 65B and 70B in 16 and 4 bits.
TEST(MemoryTable, ModelsInBlocksOf64) {
  struct Expected {
    std::int64_t parameters, linear;
    // GB: of all in 16 bits, of the linears in 4 bits without and with double quantization, of all,
    // and how many times less that is than in 16 bits
    double fp16, single, twice, single_total, single_ratio, total, ratio;
  };
  const Expected expected[] = {
      {6'738'415'616, 6'476'005'376, 13.477, 3.643, 3.341, 4.168, 3.233, 3.866, 3.486},
      {13'015'864'320, 12'687'769'600, 26.032, 7.137, 6.545, 7.794, 3.340, 7.202, 3.614},
      {32'528'943'616, 32'102'154'240, 65.058, 18.057, 16.561, 18.913, 3.440, 17.416, 3.736},
      {65'285'660'672, 64'760'053'760, 130.571, 36.428, 33.408, 37.481, 3.484, 34.462, 3.789},
      {68'976'648'192, 68'451'041'280, 137.953, 38.504, 35.312, 39.558, 3.487, 36.366, 3.794}};
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
    EXPECT_NEAR(single.total_bytes / 1e9, e.single_total, 5.1e-4);
    EXPECT_NEAR(twice.ratio(), e.ratio, 5.1e-4);
    EXPECT_NEAR(single.ratio(), e.single_ratio, 5.1e-4);
  }
}

}  // namespace
}  // namespace qlora
