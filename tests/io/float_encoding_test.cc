#include "io/float_encoding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "io/test_util.h"

namespace qlora {
namespace {

// Standard normal values (Box-Muller).
std::vector<float> Normal(std::size_t count, float scale = 1) {
  const RandomKey key = MakeKey(7, RandomPlace::kTest);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = RandomWords(key, i);
    const double u = (words[0] + 1.0) / 4294967296.0;
    const double v = words[1] / 4294967296.0;
    values[i] = scale * static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v));
  }
  return values;
}

std::vector<std::byte> Encoded(TensorType dtype, std::span<const float> values) {
  std::vector<std::byte> bytes(BytesOf(dtype, values.size()), std::byte{0xcc});
  EXPECT_EQ(EncodeFloats(dtype, values, bytes), -1);
  return bytes;
}

std::vector<float> Decoded(TensorType dtype, std::span<const std::byte> bytes, std::size_t count) {
  std::vector<float> values(count, std::numeric_limits<float>::quiet_NaN());
  DecodeFloats(dtype, bytes, values);
  return values;
}

double RelativeRms(TensorType dtype, std::span<const float> values) {
  const std::vector<float> decoded = Decoded(dtype, Encoded(dtype, values), values.size());
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += std::pow(double{values[i]} - decoded[i], 2);
    power += std::pow(double{values[i]}, 2);
  }
  return std::sqrt(error / power);
}

float HalfAt(const std::byte* bytes) {
  Float16 half;
  std::memcpy(&half, bytes, 2);
  return ToFloat(half);
}

TEST(GgufBlocks, Q8BytesFollowTheFormula) {
  const std::vector<float> values = Normal(32 * 50, 0.3f);
  const auto bytes = Encoded(BlockFormat::kQ8_0, values);
  for (std::size_t b = 0; b < 50; ++b) {
    const float* x = values.data() + b * 32;
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
    const float d = largest / 127;
    EXPECT_EQ(HalfAt(&bytes[b * 34]), ToFloat(ToFloat16(d)));
    for (int i = 0; i < 32; ++i) {
      const auto q = static_cast<std::int8_t>(bytes[b * 34 + 2 + i]);
      EXPECT_EQ(q, static_cast<int>(std::roundf(x[i] * (1 / d))));
    }
  }
}

TEST(GgufBlocks, Q8RoundsHalfAwayFromZero) {
  std::vector<float> values(32, 0.0f);
  values[0] = 127;  // d = 1
  values[1] = 0.5f;
  values[2] = -0.5f;
  values[3] = 2.5f;
  values[4] = std::nextafter(0.5f, 0.0f);
  values[5] = -126.5f;
  const auto decoded = Decoded(BlockFormat::kQ8_0, Encoded(BlockFormat::kQ8_0, values), 32);
  EXPECT_THAT(std::vector<float>(decoded.begin(), decoded.begin() + 6),
              ::testing::ElementsAre(127, 1, -1, 3, 0, -127));
}

TEST(GgufBlocks, DecodesAByHandBlock) {
  std::vector<std::byte> bytes(34, std::byte{0x00});
  bytes[1] = std::byte{0x40};   // f16 2.0
  bytes[2] = std::byte{0x03};   // code 3
  bytes[33] = std::byte{0x81};  // code -127
  const auto q8 = Decoded(BlockFormat::kQ8_0, bytes, 32);
  EXPECT_EQ(q8[0], 2.0f * 3);
  EXPECT_EQ(q8[1], 0.0f);
  EXPECT_EQ(q8[31], 2.0f * -127);
}

TEST(GgufBlocks, ErrorOnGaussianWeights) {
  // The figure of llama.cpp's own quantizer on N(0, 1).
  EXPECT_NEAR(RelativeRms(BlockFormat::kQ8_0, Normal(32 * 4000)), 0.0054, 0.0001);
}

TEST(GgufBlocks, EncodingWhatWasDecodedChangesNothing) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto once = Encoded(dtype, Normal(32 * 20));
    const auto values = Decoded(dtype, once, 32 * 20);
    EXPECT_EQ(Decoded(dtype, Encoded(dtype, values), 32 * 20), values) << NameOf(dtype);
  }
}

TEST(GgufBlocks, ZeroAndTinyBlocksDecodeToZero) {
  for (const float value : {0.0f, 1e-42f, -1e-38f, 1e-20f}) {
    const std::vector<float> values(32, value);
    const auto bytes = Encoded(BlockFormat::kQ8_0, values);
    for (const float x : Decoded(BlockFormat::kQ8_0, bytes, 32)) EXPECT_EQ(x, 0.0f);
  }
}

TEST(GgufBlocks, NamesTheValueThatCannotBeStored) {
  const float kInf = std::numeric_limits<float>::infinity();
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const TensorType dtype : std::initializer_list<TensorType>{
           DType::kF32, DType::kF16, DType::kBF16, BlockFormat::kQ8_0}) {
    for (const float bad : {kInf, -kInf, kNan}) {
      std::vector<float> values(96, 0.5f);
      values[67] = bad;
      std::vector<std::byte> bytes(BytesOf(dtype, 96));
      EXPECT_EQ(EncodeFloats(dtype, values, bytes), 67) << NameOf(dtype) << " " << bad;
    }
  }
  for (const TensorType dtype :
       std::initializer_list<TensorType>{DType::kF16, BlockFormat::kQ8_0}) {
    for (const float big : {3e38f, -1e8f}) {
      std::vector<float> values(64, 0.5f);
      values[40] = big;
      std::vector<std::byte> bytes(BytesOf(dtype, 64));
      EXPECT_EQ(EncodeFloats(dtype, values, bytes), 40) << NameOf(dtype) << " " << big;
    }
  }
}

TEST(GgufBlocks, RefusesOtherTypes) {
  std::vector<float> values(1);
  std::vector<std::byte> bytes(4);
  ExpectRefused([&] { (void)EncodeFloats(DType::kI32, values, bytes); }, "stored as I32");
  ExpectRefused([&] { DecodeFloats(DType::kI32, bytes, values); }, "I32 cannot be read as floats");
}

TEST(GgufBlocks, UnalignedBytesDecode) {
  for (const TensorType dtype : std::initializer_list<TensorType>{
           DType::kF32, DType::kF16, DType::kBF16, BlockFormat::kQ8_0}) {
    const auto bytes = Encoded(dtype, Normal(64));
    std::vector<std::byte> shifted(bytes.size() + 1);
    std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
    EXPECT_EQ(Decoded(dtype, std::span(shifted).subspan(1), 64), Decoded(dtype, bytes, 64));
  }
}

}  // namespace
}  // namespace qlora
