// Golden vectors, computed independently in numpy from the definition of bitsandbytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "quant/encode_table.h"
#include "quant/quant_test_util.h"

namespace qlora {
namespace {

using testing::ElementsAreArray;

std::vector<std::uint8_t> LowNibbleFirst(std::vector<std::uint8_t> packed) {
  for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(byte << 4 | byte >> 4);
  return packed;
}

TEST(Golden, SixtyFourUniformValues) {
  Lcg random(42);
  std::vector<float> x(64);
  for (float& value : x) value = static_cast<float>(2 * random.Next() - 1);
  ASSERT_EQ(x[0], 0.136460542678833f);
  const QuantizedMatrix q = QuantizeRow(x, {.scale_type = ScaleType::kF32});
  EXPECT_EQ(ScalesOf(q.view()), std::vector<float>{0x1.fe5ba4p-1f});
  const std::vector<std::uint8_t> packed = PackedOf(q.view());
  EXPECT_EQ(Hex(packed), "925ab0016048e3d5d05c455458875afc5a0a14fb1fef5e50217617063d0260ed");
  EXPECT_EQ(Hex(LowNibbleFirst(packed)),
            "29a50b1006843e5d0dc554458578a5cfa5a041bff1fee50512677160d32006de");
  const std::vector<float> decoded = DecodedOf(q.view());
  const std::vector<float> expected = {
      0.16041408479213715f, -0.5233891010284424f, -0.1841808408498764f, 0.24532300233840942f,
      0.3368315100669861f,  -0.9967929124832153f, -0.9967929124832153f, -0.6939600706100464f};
  EXPECT_THAT(std::vector<float>(decoded.begin(), decoded.begin() + 8), ElementsAreArray(expected));
}

TEST(Golden, NearlyNormalValues) {
  const std::vector<float> x = IrwinHall();
  ASSERT_EQ(x[0], 0.4285631775856018f);
  const QuantizedMatrix q = QuantizeRow(x, {.scale_type = ScaleType::kF32});
  const std::vector<std::uint8_t> packed = PackedOf(q.view());
  EXPECT_EQ(Fnv1a(packed), 0x440eeba10a7ac455u);
  EXPECT_EQ(Fnv1a(LowNibbleFirst(packed)), 0x58e201a159282806u);
  EXPECT_EQ(Fnv1aOf(ScalesOf(q.view())), 0x5c6e24324359b44cu);
  const ErrorStatistics e = Compare(x, DecodedOf(q.view()));
  EXPECT_NEAR(e.rmse, 0.09179317446217852, 1e-9);
  EXPECT_NEAR(e.mae, 0.07246399384666802, 1e-9);
  EXPECT_EQ(e.max, 0.48776769638061523);
}

TEST(Golden, DoubleQuantizationOfBitsandbytes) {
  const std::vector<float> x = IrwinHall();
  const QuantizedMatrix q = QuantizeRow(x, {.scale_type = ScaleType::kDoubleBnb});
  const QuantizedView& v = q.view();
  EXPECT_EQ(Fnv1a(PackedOf(v)), 0x440eeba10a7ac455u);
  EXPECT_EQ(v.nested.offset, 0x1.463a9ap+1f);
  EXPECT_THAT(std::vector<float>(v.nested.absmax, v.nested.absmax + 2),
              ElementsAreArray({0x1.c2e6e4p+0f, 0x1.036b08p+0f}));
  const auto* codes = static_cast<const std::uint8_t*>(v.scales);
  EXPECT_THAT(
      std::vector<int>(codes, codes + 16),
      ElementsAreArray({185, 203, 69, 202, 181, 55, 40, 54, 199, 210, 94, 216, 97, 61, 197, 201}));
  EXPECT_EQ(Fnv1a({codes, 512}), 0x232fa48c6bd67817u);
  EXPECT_NEAR(Compare(x, DecodedOf(v)).rmse, 0.09181264692481785, 1e-9);

  const QuantizedMatrix exact = QuantizeRow(x, {.scale_type = ScaleType::kF32});
  const std::vector<float> s = ScalesOf(v);
  const std::vector<float> s_exact = ScalesOf(exact.view());
  double worst = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    worst = std::max(worst, std::fabs(double{s[i]} - s_exact[i]) / s_exact[i]);
  }
  EXPECT_NEAR(worst, 0.00671155983582139, 1e-8);
}

// Blocks whose first value is 1, so that the others are compared with the thresholds unscaled.
std::vector<std::uint8_t> CodesInUnitBlock(std::vector<float> values,
                                           const QuantizeOptions& options) {
  values.insert(values.begin(), 1.0f);
  values.resize(64);
  std::vector<std::uint8_t> codes = CodesOf(QuantizeRow(values, options).view());
  return {codes.begin() + 1, codes.begin() + 16};
}

TEST(Golden, TiesGoToTheLowerCode) {
  const EncodeTable& table = kNf4Table;
  std::vector<float> at(table.thresholds.begin(), table.thresholds.end());
  std::vector<float> above = at;
  std::vector<float> below = at;
  for (std::size_t k = 0; k < at.size(); ++k) {
    above[k] = std::nextafter(at[k], 2.0f);
    below[k] = std::nextafter(at[k], -2.0f);
  }
  const QuantizeOptions options = {.scale_type = ScaleType::kF32};
  const std::vector<int> lower = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  const std::vector<int> upper = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  EXPECT_THAT(CodesInUnitBlock(at, options), ElementsAreArray(lower));
  EXPECT_THAT(CodesInUnitBlock(above, options), ElementsAreArray(upper));
  EXPECT_THAT(CodesInUnitBlock(below, options), ElementsAreArray(lower));
}

// Weights that another program publishes with the codes (in hexadecimal) and scales that it finds.
struct Published {
  std::int64_t block_size;
  const char* codes;
  std::vector<float> scales;
  float max_error;
};

void ExpectPublished(const std::vector<float>& x, const Published& expected) {
  const QuantizedMatrix q =
      QuantizeRow(x, {.block_size = expected.block_size, .scale_type = ScaleType::kF32});
  EXPECT_EQ(Hex(PackedOf(q.view())), expected.codes);
  EXPECT_EQ(ScalesOf(q.view()), expected.scales);
  EXPECT_FLOAT_EQ(static_cast<float>(Compare(x, DecodedOf(q.view())).max), expected.max_error);
}

TEST(Golden, WeightsThatAnotherProgramPublishes) {
  std::vector<float> x(128);  // a ramp: 16 x 8
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i);
  ExpectPublished(x, {32,
                      "7788999aaabbbcccddddeeeeeeefffff"
                      "dddddddddeeeeeeeeeeeeeefffffffff"
                      "eeeeeeeeeeeeeeeeeeffffffffffffff"
                      "eeeeeeeeeeeeeeffffffffffffffffff",
                      {0.31f, 0.63f, 0.95f, 1.27f},
                      0.17184484004974365f});
  x.clear();  // a ramp of 8 x 4 cut off at 0.9
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 4; ++j) {
      x.push_back(std::clamp(static_cast<float>(2 * i + j) * 0.1f - 1.0f, -0.9f, 0.9f));
    }
  }
  ExpectPublished(
      x,
      {16, "0001011212343456457979acacdedeef", {0.9f, 0.7000000476837158f}, 0.09999996423721313f});

  x.resize(512);  // 32 x 16
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i);
  const QuantizedMatrix q = QuantizeRow(x, {.scale_type = ScaleType::kF32});
  EXPECT_EQ(ScalesOf(q.view()),
            (std::vector<float>{0.6299999952316284f, 1.2699999809265137f, 1.909999966621399f,
                                2.549999952316284f, 3.18999981880188f, 3.8299999237060547f,
                                4.46999979019165f, 5.109999656677246f}));
  EXPECT_FLOAT_EQ(static_cast<float>(Compare(x, DecodedOf(q.view())).max), 0.6299996376037598f);
}

TEST(Golden, ZerosHaveCodeSeven) {
  const std::vector<float> x(130, 0.0f);
  for (const ScaleType type : {ScaleType::kF32, ScaleType::kDoubleBnb}) {
    const QuantizedMatrix q = QuantizeRow(x, {.scale_type = type});
    for (const std::uint8_t code : CodesOf(q.view())) ASSERT_EQ(code, 7);
    for (const float value : DecodedOf(q.view())) ASSERT_EQ(value, 0.0f);
  }
}

}  // namespace
}  // namespace qlora
