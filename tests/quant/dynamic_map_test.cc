// The 8-bit code of optimizer state.
#include "quant/dynamic_map.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace qlora {
namespace {

TEST(DynamicMap, UnsignedHasTwiceTheEntriesPerDecade) {
  const auto& values = DynamicMap::Unsigned().values();
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(values[255], 1);
  EXPECT_NEAR(values[1], (0.1 + 0.55) / 2 * 1e-6, 1e-13);
  EXPECT_NEAR(values[254], 1 - 0.9 / 128 / 2, 1e-7);
  for (std::size_t i = 1; i < 256; ++i) EXPECT_LT(values[i - 1], values[i]);
}

TEST(DynamicMap, EveryEntryIsItsOwnCodeAndMidpointsAreEven) {
  for (const DynamicMap* map : {&DynamicMap::Signed(), &DynamicMap::Unsigned()}) {
    const auto& values = map->values();
    for (std::size_t i = 0; i < 256; ++i) {
      const float x[] = {values[i], 1.0f};
      std::uint8_t codes[2];
      EXPECT_EQ(map->Encode(x, 2, codes), 1.0f);
      EXPECT_EQ(codes[0], i);
      EXPECT_EQ(codes[1], 255);
      if (i == 255) continue;
      const float middle = (values[i] + values[i + 1]) / 2;
      const float tie[] = {middle, 1.0f};
      map->Encode(tie, 2, codes);
      const auto nearest = static_cast<std::uint8_t>(i % 2 == 0 ? i : i + 1);
      // The sign is kept: a tie beside zero goes away from it.
      if (values[i] == 0 || values[i + 1] == 0) {
        EXPECT_TRUE(codes[0] == nearest || middle * values[codes[0]] > 0) << i;
      } else {
        EXPECT_EQ(codes[0], nearest) << i;
      }
    }
  }
}

TEST(DynamicMap, ErrorAndSigns) {
  const DynamicMap& map = DynamicMap::Signed();
  std::vector<float> x(kDynamicBlock);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(std::exp(RandomNormal(MakeKey(1, RandomPlace::kTest), i)) *
                              (i % 2 == 0 ? 1 : -1) * (i % 5 == 0 ? 1e-9 : 1));
  }
  x[3] = 0;
  std::vector<std::uint8_t> codes(x.size());
  const float scale = map.Encode(x.data(), kDynamicBlock, codes.data());
  std::vector<float> back(x.size());
  map.Decode(codes.data(), scale, kDynamicBlock, back.data());
  EXPECT_EQ(back[3], 0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_GE(x[i] * back[i], 0) << i;
    EXPECT_LE(std::abs(x[i] - back[i]), 0.0071f * scale) << i;
  }
}

TEST(DynamicMap, ZerosStayZeros) {
  const std::vector<float> x(7, 0.0f);
  for (const DynamicMap* map : {&DynamicMap::Signed(), &DynamicMap::Unsigned()}) {
    std::vector<std::uint8_t> codes(7, 99);
    EXPECT_EQ(map->Encode(x.data(), 7, codes.data()), 0);
    std::vector<float> back(7, 5.0f);
    map->Decode(codes.data(), 0, 7, back.data());
    EXPECT_EQ(back, x);
  }
}

}  // namespace
}  // namespace qlora
