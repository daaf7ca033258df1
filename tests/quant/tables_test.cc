// Codebooks, thresholds and the dynamic map.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "quant/compat/cuda_tables.h"
#include "quant/dynamic_map.h"
#include "quant/encode_table.h"

namespace qlora {
namespace {

using testing::ElementsAreArray;

template <std::size_t N>
std::vector<std::uint32_t> BitsOf(const std::array<float, N>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

// The z at which a standard normal variable is smaller with probability p, by bisection.
double NormalQuantile(double p) {
  double low = -10;
  double high = 10;
  while (true) {
    const double middle = (low + high) / 2;
    if (middle == low || middle == high) return middle;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
}

TEST(Tables, Nf4IsTheNormalQuantilesOfThePaper) {
  // Eight positive quantiles from 0.9677083 down to (not including) 0.5, seven negative ones, zero;
  // points in float32, as torch.linspace makes them.
  const auto points = [](int n, float start) {
    const float step = (0.5f - start) / static_cast<float>(n - 1);
    std::vector<float> p(n);
    for (int i = 0; i < n; ++i) {
      p[i] = i < n / 2 ? std::fma(step, static_cast<float>(i), start)
                       : std::fma(-step, static_cast<float>(n - 1 - i), 0.5f);
    }
    return p;
  };
  constexpr float kOffset = 0.9677083f;
  const auto largest = static_cast<float>(NormalQuantile(kOffset));
  const std::vector<float> up = points(9, kOffset);
  const std::vector<float> down = points(8, kOffset);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(kNf4Codebook[15 - i], static_cast<float>(NormalQuantile(up[i])) / largest) << i;
  }
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(kNf4Codebook[i], -static_cast<float>(NormalQuantile(down[i])) / largest) << i;
  }
  EXPECT_EQ(kNf4Codebook[7], 0.0f);
}

TEST(Tables, CodebooksHaveTheBitsOfBitsandbytes) {
  EXPECT_THAT(BitsOf(kNf4Codebook),
              ElementsAreArray({0xbf800000u, 0xbf3239b1u, 0xbf066b30u, 0xbeca32a0u, 0xbe91a24du,
                                0xbe3d353fu, 0xbdba7871u, 0x00000000u, 0x3da2faffu, 0x3e24cae3u,
                                0x3e7c04ddu, 0x3ead033au, 0x3ee1a4b8u, 0x3f1007abu, 0x3f3913b3u,
                                0x3f800000u}));
  const std::vector<std::uint32_t> magnitudes = {0x00000000, 0x3baaaaab, 0x3f2aaaab, 0x3f800000,
                                                 0x3eaaaaab, 0x3f000000, 0x3e2aaaab, 0x3e800000};
  const std::vector<std::uint32_t> fp4 = BitsOf(kFp4Codebook);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(fp4[i], magnitudes[i]);
    EXPECT_EQ(fp4[8 + i], magnitudes[i] | 0x80000000);
  }
}

TEST(Tables, Nf4ThresholdsOfBothRules) {
  std::vector<std::uint32_t> bits = {0xbf591cd8, 0xbf1c5270, 0xbeeb8480, 0xbeadea76, 0xbe703cec,
                                     0xbe0d38bc, 0xbd3a7871, 0x3d22faff, 0x3df64862, 0x3e5067e0,
                                     0x3e9582d4, 0x3ec753f9, 0x3f006d04, 0x3f248daf, 0x3f5c89da};
  EXPECT_THAT(BitsOf(kNf4Table.thresholds), ElementsAreArray(bits));
  bits[0] = 0xbf591cd9;
  bits[8] = 0x3df64863;
  bits[12] = 0x3f006d03;
  bits[14] = 0x3f5c89d9;
  EXPECT_THAT(BitsOf(compat::kNf4CudaTable.thresholds), ElementsAreArray(bits));
}

TEST(Tables, Fp4ThresholdsOfTheCpuAreMidpoints) {
  const auto& t = kFp4Table.thresholds;
  const std::vector<std::uint32_t> bits = {0x3b2aaaab, 0x3db00000, 0x3e555556, 0x3e955556,
                                           0x3ed55556, 0x3f155556, 0x3f555556};
  EXPECT_EQ(t[7], 0.0f);
  for (std::size_t k = 0; k < bits.size(); ++k) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(t[8 + k]), bits[k]);
    EXPECT_EQ(t[6 - k], -t[8 + k]);
  }
}

TEST(Tables, CodesByValueAscend) {
  for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
    for (const EncodeTable* rule : {&EncodeTableOf(type), &compat::CudaTableOf(type)}) {
      const EncodeTable& table = *rule;
      const float* code = CodebookOf(type);
      for (std::size_t k = 0; k < 15; ++k) {
        const float below = code[table.codes[k]];
        const float above = code[table.codes[k + 1]];
        EXPECT_LE(below, above);
        if (k == 7) continue;  // between the two zeros of FP4 stands only the sign
        EXPECT_GE(table.thresholds[k], below) << k;
        EXPECT_LE(table.thresholds[k], above) << k;
        if (k > 0) {
          EXPECT_LT(table.thresholds[k - 1], table.thresholds[k]);
        }
      }
    }
  }
}

TEST(Tables, DynamicMapFollowsItsConstruction) {
  // Equal steps from 0.1 to 1 as torch.linspace makes them in float32 (with fused multiply-adds),
  // midpoints of neighbours, powers of ten; both signs; 0 and 1.
  std::vector<float> expected = {0.0f, 1.0f};
  for (int e = 0; e < 7; ++e) {
    const int n = (1 << e) + 1;
    const float step = (1.0f - 0.1f) / static_cast<float>(n - 1);
    const auto point = [&](int k) {
      return k < n / 2 ? std::fma(step, static_cast<float>(k), 0.1f)
                       : std::fma(-step, static_cast<float>(n - 1 - k), 1.0f);
    };
    const auto power = static_cast<float>(std::pow(10.0, e - 6));
    for (int k = 0; k + 1 < n; ++k) {
      const float value = power * ((point(k) + point(k + 1)) / 2);
      expected.push_back(value);
      expected.push_back(-value);
    }
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_THAT(DynamicMap::Signed().values(), ElementsAreArray(expected));
  EXPECT_EQ(DynamicMap::Signed().values()[DynamicMap::kZero], 0.0f);
  // The bits of the map that bitsandbytes stores as nested_quant_map.
  std::uint64_t hash = 0;
  for (const std::uint32_t bits : BitsOf(DynamicMap::Signed().values())) hash = 31 * hash + bits;
  EXPECT_EQ(hash, 0xbccb8e6ca4416a6cU);
}

}  // namespace
}  // namespace qlora
