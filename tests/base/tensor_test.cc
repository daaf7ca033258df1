#include "qlora/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace qlora {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Tensor, NamesAndSizesOfElementTypes) {
  EXPECT_STREQ(NameOf(DType::kF32), "F32");
  EXPECT_STREQ(NameOf(DType::kBF16), "BF16");
  EXPECT_STREQ(NameOf(DType::kBool), "BOOL");
  EXPECT_EQ(BytesOf(DType::kF64, 3), 24u);
  EXPECT_EQ(BytesOf(DType::kF32, 3), 12u);
  EXPECT_EQ(BytesOf(DType::kF16, 3), 6u);
  EXPECT_EQ(BytesOf(DType::kBF16, 3), 6u);
  EXPECT_EQ(BytesOf(DType::kC128, 3), 48u);
  EXPECT_EQ(BytesOf(DType::kU8, 3), 3u);
  EXPECT_EQ(BytesOf(DType::kF32, 0), 0u);
}

TEST(Tensor, ViewsOfRowsShareStorage) {
  std::vector<float> data(6 * 5);
  const MatrixView m = {data.data(), DType::kF32, 6, 4, 5};
  const MatrixView middle = Rows(m, 2, 3);
  EXPECT_EQ(middle.rows, 3);
  EXPECT_EQ(middle.cols, 4);
  EXPECT_EQ(middle.stride, 5);
  EXPECT_EQ(middle.Row<float>(0), data.data() + 10);
  const ConstMatrixView none = Rows(ConstMatrixView(m), 6, 0);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(ConstMatrixView().empty());
}

TEST(Tensor, ReshapeKeepsTheOrderOfElements) {
  std::vector<std::int32_t> data(12);
  const MatrixView m = MakeView(data.data(), 2, 6);
  EXPECT_EQ(m.dtype, DType::kI32);
  const MatrixView flat = Reshape(m, 12);
  EXPECT_EQ(flat.rows, 1);
  EXPECT_EQ(flat.cols, 12);
  const ConstMatrixView tall = Reshape(ConstMatrixView(m), 3);
  EXPECT_EQ(tall.rows, 4);
  EXPECT_EQ(tall.Row<std::int32_t>(3), data.data() + 9);
}

TEST(Tensor, EveryBFloat16SurvivesAStayInFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    const float wide = ToFloat(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(wide))));
    } else {
      ASSERT_EQ(ToBFloat16(wide).bits, bits);
    }
  }
}

TEST(Tensor, EveryFloat16SurvivesAStayInFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Float16 value{static_cast<std::uint16_t>(bits)};
    const float wide = ToFloat(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(wide))));
    } else {
      ASSERT_EQ(ToFloat16(wide).bits, bits);
    }
  }
}

// Between two neighbours, the halfway point goes to the even one and anything beyond it onward.
template <typename T, typename Round>
void ExpectNearestEven(const Round& round, std::uint32_t last) {
  for (std::uint32_t bits = 0; bits < last; ++bits) {
    const float low = ToFloat(T{static_cast<std::uint16_t>(bits)});
    const float high = ToFloat(T{static_cast<std::uint16_t>(bits + 1)});
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(round(middle).bits, even) << low;
    ASSERT_EQ(round(std::nextafter(middle, -kInfinity)).bits, bits) << low;
    ASSERT_EQ(round(std::nextafter(middle, kInfinity)).bits, bits + 1) << low;
    ASSERT_EQ(round(-middle).bits, even | 0x8000) << low;
  }
}

TEST(Tensor, RoundsToNearestEven) {
  ExpectNearestEven<BFloat16>([](float x) { return ToBFloat16(x); }, 0x7f7f);
  ExpectNearestEven<Float16>([](float x) { return ToFloat16(x); }, 0x7bff);
}

TEST(Tensor, RoundsSpecialValues) {
  EXPECT_EQ(ToBFloat16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(ToBFloat16(-kInfinity).bits, 0xff80);
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(ToBFloat16(-0.0f).bits, 0x8000);
  EXPECT_EQ(ToFloat16(kInfinity).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(ToFloat16(0x1p-26f).bits, 0);
  EXPECT_EQ(ToFloat16(-0.0f).bits, 0x8000);
  // A NaN whose payload lies in the lower bits only must not become infinity.
  const float nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(nan))));
  EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(nan))));
}

}  // namespace
}  // namespace qlora
