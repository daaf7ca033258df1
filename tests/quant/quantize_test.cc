// The rules of encoding, lengths, layouts and errors of Quantize.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "qlora/error.h"
#include "quant/oracle.h"
#include "quant/quant_test_util.h"

namespace qlora {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Values of many magnitudes, with zeros, subnormals and whole blocks of zeros.
std::vector<float> Mixed(std::int64_t n, std::uint64_t seed) {
  std::vector<float> x = Normal(n, seed);
  const RandomKey key = MakeKey(seed + 1, RandomPlace::kTest);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::uint32_t kind = RandomWord(key, static_cast<std::uint64_t>(i / 96)) % 8;
    if (kind == 0) x[at] = 0;
    if (kind == 1) x[at] *= 1e-42f;
    if (kind == 2) x[at] *= 1e-38f;
    if (kind == 3) x[at] *= 1e38f / 8;
    if (kind == 4 && i % 3 == 0) x[at] = 0;
  }
  return x;
}

TEST(Quantize, FollowsTheCpuRuleForEveryLength) {
  for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
    for (const std::int64_t block : {1, 2, 7, 16, 32, 33, 64, 128, 256, 4096}) {
      for (const std::int64_t n : {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 4097}) {
        const std::vector<float> x = Mixed(n, static_cast<std::uint64_t>(block * 10000 + n));
        const QuantizedMatrix q =
            QuantizeRow(x, {.type = type, .block_size = block, .scale_type = ScaleType::kF32});
        const OracleBlocks expected = OracleQuantize(x, block, type);
        ASSERT_EQ(CodesOf(q.view()), expected.codes) << "block " << block << " n " << n;
        ASSERT_EQ(ScalesOf(q.view()), expected.scales) << "block " << block << " n " << n;
        if (n % 2 == 1) {
          EXPECT_EQ(q.view().packed[n / 2] & 15, type == QuantType::kNf4 ? 7 : 0);
        }
      }
    }
  }
}

template <typename T, typename Fn>
void ExpectLikeFloat(Fn convert) {
  const std::vector<float> wide = Normal(5000, 11);
  std::vector<T> x;
  std::vector<float> rounded;
  for (const float value : wide) {
    x.push_back(convert(value));
    rounded.push_back(ToFloat(x.back()));
  }
  Context context(2);
  for (const ScaleType type : {ScaleType::kF32, ScaleType::kDoubleBnb}) {
    const QuantizeOptions options = {.scale_type = type};
    const QuantizedMatrix a = Quantize(context, MakeView(x.data(), 50, 100), options);
    const QuantizedMatrix b = Quantize(context, MakeView(rounded.data(), 50, 100), options);
    EXPECT_EQ(PackedOf(a.view()), PackedOf(b.view()));
    EXPECT_EQ(ScalesOf(a.view()), ScalesOf(b.view()));
  }
}

TEST(Quantize, SixteenBitInputEqualsItsFloatValues) {
  ExpectLikeFloat<BFloat16>([](float value) { return ToBFloat16(value); });
  ExpectLikeFloat<Float16>([](float value) { return ToFloat16(value); });
}

TEST(Quantize, StridedRowsEqualContiguousOnes) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kCols = 51;
  constexpr std::int64_t kStride = 60;
  const std::vector<float> wide = Normal(kRows * kStride, 5);
  std::vector<float> dense;
  for (std::int64_t r = 0; r < kRows; ++r) {
    dense.insert(dense.end(), wide.begin() + r * kStride, wide.begin() + r * kStride + kCols);
  }
  Context context(2);
  for (const bool scale_search : {false, true}) {
    const QuantizeOptions options = {.block_size = 32, .scale_search = scale_search};
    const ConstMatrixView strided = {wide.data(), DType::kF32, kRows, kCols, kStride};
    const QuantizedMatrix a = Quantize(context, strided, options);
    const QuantizedMatrix b = Quantize(context, MakeView(dense.data(), kRows, kCols), options);
    EXPECT_EQ(PackedOf(a.view()), PackedOf(b.view()));
    EXPECT_EQ(ScalesOf(a.view()), ScalesOf(b.view()));
    std::vector<float> out(wide.size(), -7.0f);
    Dequantize(context, a.view(), {out.data(), DType::kF32, kRows, kCols, kStride});
    const std::vector<float> expected = DecodedOf(b.view());
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kStride; ++c) {
        const float value = out[r * kStride + c];
        if (c < kCols) {
          ASSERT_EQ(value, expected[r * kCols + c]);
        } else {
          ASSERT_EQ(value, -7.0f) << "wrote between rows";
        }
      }
    }
  }
}

TEST(Quantize, DoesNotDependOnThreads) {
  const std::vector<float> x = Normal(1'500'001, 8);
  const QuantizeOptions options = {.block_size = 96};
  Context one(1);
  Context three(3);
  const ConstMatrixView w = MakeView(x.data(), 1, std::ssize(x));
  const QuantizedMatrix a = Quantize(one, w, options);
  const QuantizedMatrix b = Quantize(three, w, options);
  EXPECT_EQ(PackedOf(a.view()), PackedOf(b.view()));
  EXPECT_EQ(ScalesOf(a.view()), ScalesOf(b.view()));
  EXPECT_EQ(DecodedOf(a.view()), DecodedOf(b.view()));
}

TEST(Quantize, EmptyMatrixIsEmpty) {
  Context context(1);
  const QuantizedMatrix q = Quantize(context, MakeView(static_cast<const float*>(nullptr), 0, 64));
  EXPECT_EQ(q.view().blocks(), 0);
  EXPECT_EQ(q.bytes(), 4u);  // the offset of double quantization
}

TEST(Quantize, QuantizeIntoFillsTheGivenStorage) {
  const std::vector<float> x = Normal(1000, 9);
  const ConstMatrixView w = MakeView(x.data(), 10, 100);
  Context context(1);
  const QuantizeOptions options;
  const std::size_t bytes = StorageBytes(10, 100, options);
  std::vector<std::byte> memory(bytes + 128, std::byte{0xee});
  void* start = memory.data();
  std::size_t room = bytes + 64;
  ASSERT_NE(std::align(64, bytes, start, room), nullptr);
  const std::span<std::byte> storage(static_cast<std::byte*>(start), bytes);
  const QuantizedView q = QuantizeInto(context, w, options, storage);
  const QuantizedMatrix expected = Quantize(context, w, options);
  EXPECT_EQ(DecodedOf(q), DecodedOf(expected.view()));
  EXPECT_EQ(storage.data()[bytes], std::byte{0xee}) << "wrote past the storage";
  EXPECT_THROW(QuantizeInto(context, w, options, storage.first(bytes - 1)), Error);
}

TEST(Quantize, RejectsNanAndInfWithTheFirstIndex) {
  Context context(2);
  for (const float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
    for (const std::int64_t at : {0, 63, 64, 777'777, 999'999}) {
      std::vector<float> x = Normal(1'000'000, 10);
      x[at] = bad;
      x[999'999] = bad;
      const std::string message = MessageOf([&] {
        Quantize(context, MakeView(x.data(), 1000, 1000), {.name = "layers.3.up_proj.weight"});
      });
      EXPECT_THAT(message, HasSubstr("layers.3.up_proj.weight"));
      EXPECT_THAT(message,
                  HasSubstr("index " + std::to_string(at) + " (row " + std::to_string(at / 1000) +
                            ", column " + std::to_string(at % 1000) + ")"));
      EXPECT_THAT(message, HasSubstr(std::isnan(bad) ? "nan" : "inf"));
    }
  }
  std::vector<Float16> half(100, ToFloat16(1));
  half[70] = ToFloat16(kInfinity);
  EXPECT_THAT(MessageOf([&] { Quantize(context, MakeView(half.data(), 1, 100)); }),
              HasSubstr("index 70"));
  std::vector<BFloat16> brain(100, ToBFloat16(1));
  brain[71] = ToBFloat16(std::nanf(""));
  EXPECT_THAT(MessageOf([&] { Quantize(context, MakeView(brain.data(), 1, 100)); }),
              HasSubstr("index 71"));
}

TEST(Quantize, RejectsBadOptions) {
  Context context(1);
  const std::vector<float> x(64, 1e5f);
  const ConstMatrixView w = MakeView(x.data(), 1, 64);
  EXPECT_THAT(MessageOf([&] { Quantize(context, w, {.block_size = 0}); }), HasSubstr("block_size"));
  EXPECT_THAT(MessageOf([&] { Quantize(context, w, {.scaler_block_size = 0}); }),
              HasSubstr("scaler_block_size"));
  const std::vector<double> wide(64, 1.0);
  EXPECT_THAT(MessageOf([&] { Quantize(context, MakeView(wide.data(), 1, 64)); }),
              HasSubstr("F64"));
}

}  // namespace
}  // namespace qlora
