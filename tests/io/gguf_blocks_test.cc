#include "io/gguf_blocks.h"

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

std::vector<std::byte> Encoded(DType dtype, std::span<const float> values) {
  std::vector<std::byte> bytes(BytesOf(dtype, values.size()), std::byte{0xcc});
  EXPECT_EQ(EncodeFloats(dtype, values, bytes), -1);
  return bytes;
}

std::vector<float> Decoded(DType dtype, std::span<const std::byte> bytes, std::size_t count) {
  std::vector<float> values(count, std::numeric_limits<float>::quiet_NaN());
  DecodeFloats(dtype, bytes, values);
  return values;
}

double RelativeRms(DType dtype, std::span<const float> values) {
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
  const auto bytes = Encoded(DType::kQ8_0, values);
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
  const auto decoded = Decoded(DType::kQ8_0, Encoded(DType::kQ8_0, values), 32);
  EXPECT_THAT(std::vector<float>(decoded.begin(), decoded.begin() + 6),
              ::testing::ElementsAre(127, 1, -1, 3, 0, -127));
}

TEST(GgufBlocks, Q4BytesFollowTheFormula) {
  const std::vector<float> values = Normal(32 * 50, 3.0f);
  const auto bytes = Encoded(DType::kQ4_0, values);
  for (std::size_t b = 0; b < 50; ++b) {
    const float* x = values.data() + b * 32;
    float signed_max = 0;
    for (int i = 0; i < 32; ++i) {
      if (std::abs(x[i]) > std::abs(signed_max)) signed_max = x[i];
    }
    const float d = signed_max / -8;
    EXPECT_EQ(HalfAt(&bytes[b * 18]), ToFloat(ToFloat16(d)));
    for (int j = 0; j < 16; ++j) {
      const int packed = static_cast<int>(bytes[b * 18 + 2 + j]);
      EXPECT_EQ(packed & 15, std::min(15, static_cast<int>(x[j] * (1 / d) + 8.5f)));
      EXPECT_EQ(packed >> 4, std::min(15, static_cast<int>(x[j + 16] * (1 / d) + 8.5f)));
    }
  }
}

TEST(GgufBlocks, DecodesAByHandBlock) {
  std::vector<std::byte> bytes(18, std::byte{0x00});
  bytes[1] = std::byte{0x40};  // f16 2.0
  bytes[2] = std::byte{0xf3};  // code 3 first, code 15 at 16
  const auto q4 = Decoded(DType::kQ4_0, bytes, 32);
  EXPECT_EQ(q4[0], 2.0f * (3 - 8));
  EXPECT_EQ(q4[16], 2.0f * (15 - 8));
  EXPECT_EQ(q4[1], -16.0f);
  const auto iq4 = Decoded(DType::kIQ4_NL, bytes, 32);
  EXPECT_EQ(iq4[0], 2.0f * -65);
  EXPECT_EQ(iq4[16], 2.0f * 113);
  EXPECT_EQ(iq4[31], 2.0f * -127);
}

TEST(GgufBlocks, ErrorsOnGaussianWeights) {
  // The figures of llama.cpp's own quantizers on N(0, 1): 0.0054, 0.0865, 0.0735. The search for
  // the least squared error may only be better.
  const std::vector<float> values = Normal(32 * 4000);
  EXPECT_NEAR(RelativeRms(DType::kQ8_0, values), 0.0054, 0.0001);
  EXPECT_NEAR(RelativeRms(DType::kQ4_0, values), 0.0865, 0.0010);
  EXPECT_LT(RelativeRms(DType::kIQ4_NL, values), 0.0735);
  EXPECT_GT(RelativeRms(DType::kIQ4_NL, values), 0.06);
}

TEST(GgufBlocks, Iq4PicksTheNearestCodeForItsScale) {
  const std::vector<float> values = Normal(32 * 50, 0.02f);
  const auto bytes = Encoded(DType::kIQ4_NL, values);
  const auto decoded = Decoded(DType::kIQ4_NL, bytes, values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float scale = HalfAt(&bytes[i / 32 * 18]);
    float nearest = std::numeric_limits<float>::infinity();
    for (const int code : kIq4NlCodebook) {
      nearest = std::min(nearest, std::abs(values[i] - scale * static_cast<float>(code)));
    }
    // Two products of float32 may round differently: a few ulps of the largest value.
    EXPECT_LE(std::abs(values[i] - decoded[i]), nearest + 128 * std::abs(scale) * 4e-7f);
  }
}

TEST(GgufBlocks, EncodingWhatWasDecodedChangesNothing) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kIQ4_NL}) {
    const auto once = Encoded(dtype, Normal(32 * 20));
    const auto values = Decoded(dtype, once, 32 * 20);
    EXPECT_EQ(Decoded(dtype, Encoded(dtype, values), 32 * 20), values) << NameOf(dtype);
  }
}

TEST(GgufBlocks, ZeroAndTinyBlocksDecodeToZero) {
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kIQ4_NL}) {
    for (const float value : {0.0f, 1e-42f, -1e-38f, 1e-20f}) {
      const std::vector<float> values(32, value);
      for (const float x : Decoded(dtype, Encoded(dtype, values), 32)) EXPECT_EQ(x, 0.0f);
    }
  }
}

TEST(GgufBlocks, NamesTheValueThatCannotBeStored) {
  const float kInf = std::numeric_limits<float>::infinity();
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kIQ4_NL}) {
    for (const float bad : {kInf, -kInf, kNan}) {
      std::vector<float> values(96, 0.5f);
      values[67] = bad;
      std::vector<std::byte> bytes(BytesOf(dtype, 96));
      EXPECT_EQ(EncodeFloats(dtype, values, bytes), 67) << NameOf(dtype) << " " << bad;
    }
  }
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kIQ4_NL}) {
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
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kIQ4_NL}) {
    const auto bytes = Encoded(dtype, Normal(64));
    std::vector<std::byte> shifted(bytes.size() + 1);
    std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
    EXPECT_EQ(Decoded(dtype, std::span(shifted).subspan(1), 64), Decoded(dtype, bytes, 64));
  }
}

}  // namespace
}  // namespace qlora
