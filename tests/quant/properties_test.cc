// What holds for every input.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "qlora/error.h"
#include "quant/double_quant.h"
#include "quant/kernels.h"
#include "quant/quant_test_util.h"

namespace qlora {
namespace {

constexpr ScaleType kAllScaleTypes[] = {ScaleType::kF32, ScaleType::kDoubleBnb};

std::vector<std::uint8_t> StoredScales(const QuantizedView& q, std::size_t bytes_each) {
  const auto* stored = static_cast<const std::uint8_t*>(q.scales);
  return {stored, stored + static_cast<std::size_t>(q.blocks()) * bytes_each};
}

TEST(Properties, QuantizingWhatWasDequantizedChangesNothing) {
  for (const std::int64_t block : {32, 64, 512}) {
    for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
      const std::vector<float> x = Normal(200'003, static_cast<std::uint64_t>(block), 0.02);
      for (const ScaleType scale_type : kAllScaleTypes) {
        const QuantizeOptions options = {
            .type = type, .block_size = block, .scale_type = scale_type};
        const QuantizedMatrix q = QuantizeRow(x, options);
        const QuantizedMatrix again = QuantizeRow(DecodedOf(q.view()), options);
        EXPECT_EQ(PackedOf(q.view()), PackedOf(again.view()));
        if (scale_type == ScaleType::kF32) {
          EXPECT_EQ(StoredScales(q.view(), 4), StoredScales(again.view(), 4));
        }
      }
    }
  }
}

TEST(Properties, ErrorIsAtMostHalfTheWidestGap) {
  for (const std::int64_t block : {32, 64, 4096}) {
    for (const double sigma : {1e-30, 0.02, 1.0, 1e30}) {
      std::vector<float> x = Normal(100'000, static_cast<std::uint64_t>(block), sigma);
      const QuantizedMatrix q =
          QuantizeRow(x, {.block_size = block, .scale_type = ScaleType::kF32});
      const std::vector<float> y = DecodedOf(q.view());
      const std::vector<float> scales = ScalesOf(q.view());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double scale = scales[i / static_cast<std::size_t>(block)];
        ASSERT_LE(std::fabs(double{x[i]} - y[i]), 0.1519037 * scale);
        if (std::fabs(x[i]) == scale) {
          ASSERT_EQ(y[i], x[i]);
        }
      }
    }
  }
}

TEST(Properties, PowersOfTwoLeaveTheCodesUnchanged) {
  const std::vector<float> x = Normal(10'000, 1);
  const std::vector<std::uint8_t> packed = PackedOf(QuantizeRow(x, {}).view());
  for (const float factor : {0x1p-60f, 0x1p-7f, 0x1p60f}) {
    std::vector<float> scaled = x;
    for (float& value : scaled) value *= factor;
    EXPECT_EQ(PackedOf(QuantizeRow(scaled, {}).view()), packed);
  }
}

TEST(Properties, BlocksOfZerosDecodeToZeroBesideOutliers) {
  std::vector<float> x = Normal(64 * 600, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i / 64 % 3 == 0) x[i] = 0;
    if (i / 64 % 7 == 1) x[i] *= 1000;
  }
  x.resize(x.size() + 5, 0.0f);
  for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
    for (const ScaleType scale_type : kAllScaleTypes) {
      const QuantizedMatrix q = QuantizeRow(x, {.type = type, .scale_type = scale_type});
      const std::vector<float> y = DecodedOf(q.view());
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (x[i] == 0) {
          ASSERT_EQ(y[i], 0.0f) << i;
        }
      }
    }
  }
}

TEST(Properties, ConstantTensorsSurviveDoubleQuantization) {
  for (const float value : {1.0f, -3.25f, 1e-30f}) {
    const std::vector<float> x(5000, value);
    for (const float y : DecodedOf(QuantizeRow(x, {}).view())) {
      ASSERT_NEAR(y, value, std::fabs(value) * 1e-6);
    }
  }
}

TEST(Properties, SixteenBitOutputIsTheRoundedFloat) {
  const std::vector<float> x = Normal(10'001, 6);
  Context context(2);
  for (const std::int64_t block : {7, 64}) {
    const QuantizedMatrix q = QuantizeRow(x, {.block_size = block});
    const std::vector<float> expected = DecodedOf(q.view());
    std::vector<BFloat16> brain(x.size());
    std::vector<Float16> half(x.size());
    Dequantize(context, q.view(), MakeView(brain.data(), 1, std::ssize(brain)));
    Dequantize(context, q.view(), MakeView(half.data(), 1, std::ssize(half)));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(brain[i].bits, ToBFloat16(expected[i]).bits);
      ASSERT_EQ(half[i].bits, ToFloat16(expected[i]).bits);
    }
  }
}

TEST(Properties, AnyRowsDecodeLikeTheWhole) {
  constexpr std::int64_t kRows = 23;
  Context context(2);
  for (const std::int64_t cols : {1, 31, 64, 77, 128, 200}) {
    for (const ScaleType scale_type : kAllScaleTypes) {
      const std::vector<float> x = Normal(kRows * cols, static_cast<std::uint64_t>(cols));
      const QuantizedMatrix q =
          Quantize(context, MakeView(x.data(), kRows, cols), {.scale_type = scale_type});
      const std::vector<float> whole = DecodedOf(q.view());
      for (std::int64_t first = 0; first < kRows; first += 5) {
        const std::int64_t rows = std::min<std::int64_t>(3, kRows - first);
        std::vector<float> out(static_cast<std::size_t>(rows * cols) + 1, -1.0f);
        DequantizeRows(q.view(), first, MakeView(out.data(), rows, cols));
        EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, whole.begin() + first * cols));
        EXPECT_EQ(out.back(), -1.0f);
      }
      std::vector<float> out(3 * cols);
      EXPECT_THROW(DequantizeRows(q.view(), kRows - 2, MakeView(out.data(), 3, cols)), Error);
      EXPECT_THROW(DequantizeRows(q.view(), -1, MakeView(out.data(), 3, cols)), Error);
      EXPECT_THROW(Dequantize(context, q.view(), MakeView(out.data(), 3, cols)), Error);
    }
  }
}

TEST(Properties, DoubleQuantizationAloneEqualsThatOfAMatrix) {
  const std::vector<float> x = Normal(64 * 1000, 12);
  const std::vector<float> absmax =
      ScalesOf(QuantizeRow(x, {.scale_type = ScaleType::kF32}).view());
  for (const std::int64_t block : {1, 2, 100, 256, 5000}) {
    const QuantizedMatrix q = QuantizeRow(x, {.scaler_block_size = block});
    const DoubleQuantizedScales d = DoubleQuantizeScales(absmax, block);
    EXPECT_EQ(d.offset, q.view().nested.offset);
    EXPECT_EQ(d.codes, StoredScales(q.view(), 1));
    for (std::size_t i = 0; i < d.nested_scales.size(); ++i) {
      ASSERT_EQ(d.nested_scales[i], q.view().nested.absmax[i]);
    }
    for (const float s : ScalesOf(q.view())) ASSERT_TRUE(std::isfinite(s));
  }
}

TEST(Properties, PlainArraysEqualMatrices) {
  for (const std::int64_t n : {1, 64, 999}) {
    const std::vector<float> x = Normal(n, static_cast<std::uint64_t>(n));
    const QuantizedMatrix q = QuantizeRow(x, {.block_size = 32, .scale_type = ScaleType::kF32});
    std::vector<std::uint8_t> packed(PackedBytes(n));
    std::vector<float> absmax(BlockCount(n, 32));
    QuantizeNf4<float>(x, 32, packed, absmax);
    EXPECT_EQ(packed, PackedOf(q.view()));
    EXPECT_EQ(absmax, ScalesOf(q.view()));
    std::vector<float> out(x.size());
    DequantizeNf4<float>(packed, absmax, 32, out);
    EXPECT_EQ(out, DecodedOf(q.view()));
    EXPECT_THROW(QuantizeNf4<float>(x, 0, packed, absmax), Error);
    packed.push_back(0);
    EXPECT_THROW(QuantizeNf4<float>(x, 32, packed, absmax), Error);
  }
}

TEST(Properties, NearestEntryWithTheLowerOnATie) {
  const std::vector<float> codebook = {-1, 0, 0.5f, 2};
  const std::vector<float> x = {-9, -0.5f, -0.25f, 0.25f, 0.26f, 1.25f, 1.26f, 9};
  std::vector<std::uint8_t> codes(x.size());
  QuantizeNearest(x, codebook, codes);
  EXPECT_EQ(codes, (std::vector<std::uint8_t>{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_THROW(QuantizeNearest(x, std::vector<float>{1, 0}, codes), Error);
}

TEST(Properties, SizesOfA4096Layer) {
  Context context(2);
  const std::vector<float> x(std::size_t{4096} * 4096, 0.0f);
  const ConstMatrixView w = MakeView(x.data(), 4096, 4096);
  const QuantizedMatrix plain = Quantize(context, w, {.scale_type = ScaleType::kF32});
  EXPECT_EQ(plain.bytes(), 9'437'184u);
  EXPECT_DOUBLE_EQ(plain.bits_per_weight(), 4.5);
  EXPECT_NEAR(plain.compression_ratio(), 7.111, 5e-4);
  const QuantizedMatrix nested = Quantize(context, w, {});
  EXPECT_EQ(nested.bytes(), 8'654'852u);
  EXPECT_NEAR(nested.compression_ratio(), 7.754, 5e-4);
}

TEST(Properties, ScalesComeBackAsTheMatrixReadsThem) {
  const std::vector<float> x = Normal(64 * 600, 3);
  const std::vector<float> scales =
      ScalesOf(QuantizeRow(x, {.scale_type = ScaleType::kF32}).view());
  const DoubleQuantizedScales twice = DoubleQuantizeScales(scales);
  std::vector<float> found(600);
  DequantizeScales(twice.codes, twice.nested_scales, twice.offset, 256, found);
  EXPECT_EQ(found, ScalesOf(QuantizeRow(x, {}).view()));
  EXPECT_THROW(DequantizeScales(twice.codes, twice.nested_scales, twice.offset, 128, found), Error);
  EXPECT_THROW(DoubleQuantizeScales({}), Error);
}

// Rows that lie closer together and farther apart than nested blocks are long.
TEST(Properties, ColumnsHoldTheScalesThatAreLoaded) {
  Context context(1);
  const std::vector<float> x = Normal(64 * 600, 5);
  for (const ScaleType scheme : kAllScaleTypes) {
    const QuantizedMatrix matrix =
        Quantize(context, MakeView(x.data(), 600, 64), {.scale_type = scheme});
    std::vector<float> scales(600);
    LoadScales(matrix.view(), 0, 600, scales.data());
    for (const std::int64_t stride : {2, 33, 256, 297}) {
      const std::int64_t first = 250;  // with a stride of 297, the second nested block is skipped
      const std::int64_t rows = (600 - first - 2) / stride + 1;
      std::vector<float> found(2 * rows, -1.0f);
      LoadScaleColumns(matrix.view(), first, stride, rows, 2, found.data());
      for (std::int64_t i = 0; i < 2 * rows; ++i) {
        const std::int64_t block = first + i / 2 * stride + i % 2;
        EXPECT_EQ(found[i], scales[block]);
      }
    }
  }
}

TEST(Properties, TablesHoldTheScalesThatAreLoaded) {
  Context context(1);
  const std::vector<float> x = Normal(64 * 600, 4);
  const QuantizedMatrix matrix =
      Quantize(context, MakeView(x.data(), 600, 64), {.scale_type = ScaleType::kDoubleBnb});
  const QuantizedView q = matrix.view();
  std::vector<float> scales(600);
  LoadScales(q, 0, 600, scales.data());
  std::vector<float> table(256);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (i % 256 == 0) TabulateScales(q, static_cast<std::int64_t>(i / 256), table.data());
    EXPECT_EQ(table[static_cast<const std::uint8_t*>(q.scales)[i]], scales[i]);
  }
}

// The bits of one weight, from the formulas 4 + 32 / B and 4 + 8 / B + 32 / (256 B) worked out by
// hand.
TEST(Properties, BitsByBlockSize) {
  const auto bits = [](std::int64_t block_size, ScaleType type) {
    return BitsPerWeight({.block_size = block_size, .scale_type = type});
  };
  const double single[] = {5.0, 4.5, 4.25, 4.125};
  const double twice[] = {4.25390625, 4.126953125, 4.0634765625, 4.03173828125};
  for (int i = 0; i < 4; ++i) {
    const std::int64_t block_size = 32 << i;
    EXPECT_EQ(bits(block_size, ScaleType::kF32), single[i]);
    EXPECT_EQ(bits(block_size, ScaleType::kDoubleBnb), twice[i]);
  }
}

}  // namespace
}  // namespace qlora
