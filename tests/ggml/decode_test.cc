// Decoded blocks beside ggml's, bit for bit, on every target.
#include "ggml/decode.h"

#include <gtest/gtest.h>

#include <bit>

#include "base/random.h"
#include "ggml/block_bytes.h"
#include "ggml/golden.h"
#include "machine/simd_target.h"
#include "test_build.h"

namespace qlora {
namespace {

class GgmlDecode : public testing::TestWithParam<BlockFormatInfo> {
 protected:
  void TearDown() override { SetSimdTarget(BestSimdTarget()); }
};

INSTANTIATE_TEST_SUITE_P(All, GgmlDecode, testing::ValuesIn(BlockFormats()), FormatName);

// The blocks begin at an odd address.
std::vector<float> Decode(const BlockFormatInfo& info, const std::vector<std::byte>& blocks) {
  std::vector<std::byte> shifted(blocks.size() + 1);
  std::copy(blocks.begin(), blocks.end(), shifted.begin() + 1);
  const std::int64_t count = std::ssize(blocks) / info.bytes;
  std::vector<float> values(count * info.values);
  DecodeBlocks(info.format, shifted.data() + 1, count, values.data());
  return values;
}

// Compares bits, so that signs of zeros count and NaN equals itself.
void ExpectSameBits(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << "value " << i << ": " << found[i] << ", expected " << expected[i];
  }
}

// Any bits: scales may be infinite or NaN.
std::vector<std::byte> RandomBlocks(const BlockFormatInfo& info, std::int64_t count) {
  const RandomKey key = MakeKey(info.ggml_type, RandomPlace::kTest);
  std::vector<std::byte> blocks(count * info.bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = static_cast<std::byte>(RandomWord(key, i) & 255);
  }
  return blocks;
}

TEST(GgmlBytes, EveryHalf) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    std::byte bytes[2];
    StoreAt(bytes, half);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(HalfAt(bytes)),
              std::bit_cast<std::uint32_t>(ToFloat(Float16{half})))
        << bits;
  }
}

TEST_P(GgmlDecode, EqualsGgml) {
  const std::string name = GetParam().name;
  const auto blocks = ReadArray<std::byte>(kGgmlGolden / (name + ".blocks"));
  const auto values = ReadArray<float>(kGgmlGolden / (name + ".values"));
  ASSERT_FALSE(blocks.empty());
  for (const SimdTarget target : SimdTargets()) {
    SCOPED_TRACE(NameOf(target));
    SetSimdTarget(target);
    ExpectSameBits(Decode(GetParam(), blocks), values);
  }
}

TEST_P(GgmlDecode, GivesTheSameBitsOnAllTargets) {
  const std::vector<std::byte> blocks = RandomBlocks(GetParam(), 2000);
  SetSimdTarget(SimdTarget::kScalar);
  const std::vector<float> expected = Decode(GetParam(), blocks);
  for (const SimdTarget target : SimdTargets()) {
    SCOPED_TRACE(NameOf(target));
    SetSimdTarget(target);
    ExpectSameBits(Decode(GetParam(), blocks), expected);
  }
}

TEST_P(GgmlDecode, RoundsToBFloat16) {
  const std::vector<std::byte> blocks = RandomBlocks(GetParam(), 50);
  const std::vector<float> values = Decode(GetParam(), blocks);
  for (const SimdTarget target : SimdTargets()) {
    SetSimdTarget(target);
    std::vector<BFloat16> rounded(values.size());
    DecodeBlocks(GetParam().format, blocks.data(), 50, rounded.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(rounded[i].bits, ToBFloat16(values[i]).bits) << NameOf(target) << " value " << i;
    }
  }
}

// Each file NAME.bin of that folder holds blocks, NAME.f32 what ggml decodes.
TEST(GgmlDecodeFiles, EqualGgml) {
  const auto folder = SharedFolder() / "golden/gguf/types";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "there is no folder " << folder;
  for (const BlockFormatInfo& info : BlockFormats()) {
    const std::string name = info.name;
    SCOPED_TRACE(name);
    ExpectSameBits(Decode(info, ReadArray<std::byte>(folder / (name + ".bin"))),
                   ReadArray<float>(folder / (name + ".f32")));
  }
}

TEST(GgmlBlockFormats, AreFoundByNumberAndName) {
  for (const BlockFormatInfo& info : BlockFormats()) {
    EXPECT_EQ(&InfoOf(info.format), &info);
    EXPECT_EQ(FindBlockFormat(info.ggml_type), &info);
    EXPECT_EQ(FindBlockFormat(info.name), &info);
  }
  EXPECT_EQ(FindBlockFormat(0), nullptr);   // F32
  EXPECT_EQ(FindBlockFormat(15), nullptr);  // Q8_K, which no file has
  EXPECT_EQ(FindBlockFormat("Q4_2"), nullptr);
}

}  // namespace
}  // namespace qlora
