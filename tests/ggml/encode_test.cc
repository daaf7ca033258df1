// Encoders beside ggml's own, on all targets, and at the ends of the numbers.
#include "ggml/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/random.h"
#include "ggml/decode.h"
#include "ggml/golden.h"
#include "machine/simd_target.h"
#include "qlora/error.h"

namespace qlora {
namespace {

constexpr std::int64_t kCols = 512;  // of the golden rows

std::vector<BlockFormatInfo> EncodableFormats() {
  std::vector<BlockFormatInfo> out;
  for (const BlockFormatInfo& info : BlockFormats()) {
    if (info.encodable) out.push_back(info);
  }
  return out;
}

class GgmlEncode : public testing::TestWithParam<BlockFormatInfo> {
 protected:
  void TearDown() override { SetSimdTarget(BestSimdTarget()); }
};

INSTANTIATE_TEST_SUITE_P(All, GgmlEncode, testing::ValuesIn(EncodableFormats()), FormatName);

std::vector<std::byte> Encode(const BlockFormatInfo& info, std::span<const float> x,
                              const float* importance) {
  const std::int64_t count = std::ssize(x) / info.values;
  std::vector<std::byte> blocks(count * info.bytes);
  EXPECT_EQ(EncodeBlocks(info.format, x.data(), count, importance, blocks.data()), -1);
  return blocks;
}

// What is read after encoding.
std::vector<float> Stored(const BlockFormatInfo& info, std::span<const float> x,
                          const float* importance) {
  const std::vector<std::byte> blocks = Encode(info, x, importance);
  std::vector<float> values(x.size());
  DecodeBlocks(info.format, blocks.data(), std::ssize(x) / info.values, values.data());
  return values;
}

double SquaredError(std::span<const float> x, std::span<const float> y, const float* weights) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double rest = static_cast<double>(x[i]) - y[i];
    sum += rest * rest * (weights == nullptr ? 1 : weights[i]);
  }
  return sum;
}

// Nearly normal values whose spread changes from 16 to 16, with zeros among them.
std::vector<float> Weights(std::int64_t n, std::uint64_t seed) {
  const RandomKey key = MakeKey(seed, RandomPlace::kTest);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    float sum = -3;
    for (std::size_t k = 0; k < 6; ++k) sum += RandomUniform(key, 8 * i + k);
    const float spread = RandomUniform(key, 8 * (i / 16) + 6);
    x[i] = RandomWord(key, 8 * i + 7) % 64 == 0 ? 0 : sum * spread;
  }
  return x;
}

std::vector<float> ImportanceOf(std::int64_t n) {
  const RandomKey key = MakeKey(5, RandomPlace::kTest);
  std::vector<float> importance(n);
  for (std::size_t i = 0; i < importance.size(); ++i) {
    const float u = RandomUniform(key, i);
    importance[i] = i % 41 == 0 ? 0 : u * u * u;
  }
  return importance;
}

TEST_P(GgmlEncode, ErrsAtMostAsMuchAsGgmlInEveryRow) {
  const auto source = ReadArray<float>(kGgmlGolden / "source.f32");
  const auto importance = ReadArray<float>(kGgmlGolden / "importance.f32");
  const auto errors = nlohmann::json::parse(std::ifstream(kGgmlGolden / "errors.json"));
  const nlohmann::json& expected = errors.at(GetParam().name);
  for (const float* weights : {static_cast<const float*>(nullptr), importance.data()}) {
    const nlohmann::json& bounds = expected.at(weights == nullptr ? "plain" : "imatrix");
    for (std::int64_t row = 0; row < std::ssize(source) / kCols; ++row) {
      const auto x = std::span(source).subspan(row * kCols, kCols);
      const double error = SquaredError(x, Stored(GetParam(), x, weights), weights);
      EXPECT_LE(error, bounds.at(row).get<double>() * (1 + 1e-12))
          << "row " << row << (weights == nullptr ? "" : " with importance");
    }
  }
}

TEST_P(GgmlEncode, GivesTheSameBytesOnAllTargets) {
  const std::vector<float> x = Weights(64 * 256, GetParam().ggml_type);
  const std::vector<float> importance = ImportanceOf(std::ssize(x));
  for (const float* weights : {static_cast<const float*>(nullptr), importance.data()}) {
    SetSimdTarget(SimdTarget::kScalar);
    const std::vector<std::byte> expected = Encode(GetParam(), x, weights);
    for (const SimdTarget target : SimdTargets()) {
      SetSimdTarget(target);
      EXPECT_EQ(Encode(GetParam(), x, weights), expected) << NameOf(target);
    }
  }
}

TEST_P(GgmlEncode, ServesImportantColumns) {
  const std::vector<float> x = Weights(16 * 256, 11);
  const std::vector<float> importance = ImportanceOf(std::ssize(x));
  const float* weights = importance.data();
  if (GetParam().importance == Importance::kIgnored) {
    EXPECT_EQ(Encode(GetParam(), x, weights), Encode(GetParam(), x, nullptr));
    return;
  }
  EXPECT_LT(SquaredError(x, Stored(GetParam(), x, weights), weights),
            0.999 * SquaredError(x, Stored(GetParam(), x, nullptr), weights));
  // Where nothing is known, all columns count the same.
  const std::vector<float> unknown(x.size(), 0.0f);
  EXPECT_EQ(Encode(GetParam(), x, unknown.data()), Encode(GetParam(), x, nullptr));
}

TEST_P(GgmlEncode, KeepsZeros) {
  std::vector<float> x(512, 0.0f);
  std::fill(x.begin(), x.begin() + 100, -0.0f);
  const std::vector<float> stored = Stored(GetParam(), x, nullptr);
  EXPECT_EQ(stored, x);
  const BlockFormat format = GetParam().format;
  if (format == BlockFormat::kQ3_K || format == BlockFormat::kQ6_K) {
    EXPECT_FALSE(std::signbit(stored.back()));  // of a level of 0
  }
}

// Values that blocks can hold exactly are found again, or nearly so.
TEST_P(GgmlEncode, LosesLittleTheSecondTime) {
  const std::vector<float> x = Weights(64 * 256, 9);
  const std::vector<float> once = Stored(GetParam(), x, nullptr);
  const std::vector<float> twice = Stored(GetParam(), once, nullptr);
  EXPECT_LE(SquaredError(once, twice, nullptr), 0.1 * SquaredError(x, once, nullptr));
}

// Groups of equal values need no more than the rounding of a scale to float16.
TEST_P(GgmlEncode, StoresConstants) {
  if (GetParam().format == BlockFormat::kMXFP4) return;  // scales are powers of two
  const std::vector<float> importance = ImportanceOf(512);
  for (const float* weights : {static_cast<const float*>(nullptr), importance.data()}) {
    for (const float value : {0.037f, -0.037f, 1.0f, 33.0f}) {
      for (const float y : Stored(GetParam(), std::vector<float>(512, value), weights)) {
        ASSERT_NEAR(y / value, 1, 0x1p-10f) << value;
      }
    }
  }
}

// Scales that are subnormal or zero as float16 never make values worse than zeros would be.
TEST_P(GgmlEncode, StoresTinyValues) {
  for (const float size : {1e-6f, 1e-7f, 1e-8f, 1e-9f, 1e-20f, 1e-38f, 1e-44f}) {
    std::vector<float> x = Weights(512, 3);
    for (float& value : x) value *= size;
    const std::vector<float> zeros(x.size(), 0.0f);
    EXPECT_LE(SquaredError(x, Stored(GetParam(), x, nullptr), nullptr),
              SquaredError(x, zeros, nullptr))
        << size;
  }
}

// The largest value that is taken, of both signs.
float LargestOf(const BlockFormatInfo& info) {
  std::vector<std::byte> blocks(info.bytes);
  std::vector<float> x(info.values);
  float largest = 1;
  while (largest < 1e38f) {
    x[0] = 2 * largest;
    if (EncodeBlocks(info.format, x.data(), 1, nullptr, blocks.data()) != -1) break;
    largest *= 2;
  }
  return largest;
}

TEST_P(GgmlEncode, StoresHugeValues) {
  const float largest = LargestOf(GetParam());
  EXPECT_GE(largest, 32768);
  std::vector<float> x = Weights(512, 4);
  for (float& value : x) value *= largest / 3;
  x[0] = largest;
  x[300] = -largest;
  const std::vector<float> y = Stored(GetParam(), x, nullptr);
  for (const float value : y) ASSERT_TRUE(std::isfinite(value));
  EXPECT_NEAR(y[0] / largest, 1, 0.3);
  EXPECT_NEAR(y[300] / largest, -1, 0.3);
}

TEST_P(GgmlEncode, NamesTheFirstValueThatCannotBeStored) {
  std::vector<std::byte> blocks(2 * GetParam().bytes, std::byte{7});
  const std::vector<std::byte> before = blocks;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = Weights(2 * GetParam().values, 6);
    x[GetParam().values + 3] = x.back() = bad;
    EXPECT_EQ(EncodeBlocks(GetParam().format, x.data(), 2, nullptr, blocks.data()),
              GetParam().values + 3);
    EXPECT_EQ(blocks, before);
  }
}

TEST(GgmlEncodeMxfp4, StoresNoInfinity) {
  const BlockFormatInfo& info = InfoOf(BlockFormat::kMXFP4);
  std::vector<float> x(32, 0x1.8p127f);
  EXPECT_EQ(Stored(info, x, nullptr), x);
  x[7] = 0x1.cp127f;
  std::vector<std::byte> block(17);
  EXPECT_EQ(EncodeBlocks(info.format, x.data(), 1, nullptr, block.data()), 7);
}

TEST(GgmlEncodeQ8, GivesTheBytesOfGgml) {
  const auto source = ReadArray<float>(kGgmlGolden / "source.f32");
  auto expected = ReadArray<std::byte>(kGgmlGolden / "Q8_0.blocks");
  expected.resize(2 * 34);  // the first two blocks are of the first row
  EXPECT_EQ(Encode(InfoOf(BlockFormat::kQ8_0), std::span(source).first(64), nullptr), expected);
}

TEST(GgmlEncodeFormats, RefusesTheOnesThatItCannotWrite) {
  std::vector<std::byte> block(256);
  const std::vector<float> x(256);
  try {
    (void)EncodeBlocks(BlockFormat::kIQ2_XS, x.data(), 1, nullptr, block.data());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_STREQ(error.what(), "blocks of IQ2_XS can be read, not written");
  }
}

}  // namespace
}  // namespace qlora
