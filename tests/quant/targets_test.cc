// The vector kernels of every target against the scalar definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "machine/simd_target.h"
#include "quant/compat/cuda_tables.h"
#include "quant/decode.h"
#include "quant/encode.h"
#include "quant/kernels.h"
#include "quant/quant_test_util.h"

namespace qlora {
namespace {

class TargetsTest : public testing::TestWithParam<SimdTarget> {
 protected:
  void SetUp() override {
    if (std::ranges::count(SimdTargets(), GetParam()) == 0)
      GTEST_SKIP() << "this machine lacks " << NameOf(GetParam());
    SetSimdTarget(GetParam());
  }
  void TearDown() override { SetSimdTarget(BestSimdTarget()); }
};

INSTANTIATE_TEST_SUITE_P(All, TargetsTest,
                         testing::Values(SimdTarget::kScalar, SimdTarget::kAvx2,
                                         SimdTarget::kAvx512),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

constexpr QuantType kTypes[] = {QuantType::kNf4, QuantType::kFp4};
constexpr const EncodeTable* kTables[] = {&kNf4Table, &compat::kNf4CudaTable, &kFp4Table,
                                          &compat::kFp4CudaTable};

// Thresholds scaled by various absmax, neighbours included, among random values.
std::vector<float> DelicateValues(const EncodeTable& table, std::int64_t n, std::uint64_t seed) {
  const RandomKey key = MakeKey(seed, RandomPlace::kTest);
  std::vector<float> x(n);
  float scale = 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t word = RandomWord(key, i);
    if (i % 96 == 0)
      scale = std::ldexp(1.0f + RandomUniform(key, i + 7), static_cast<int>(word % 200) - 100);
    float value = table.thresholds[word % 15] * scale;
    if (word >> 8 & 1) value = std::nextafter(value, (word >> 9 & 1) ? 1e38f : -1e38f);
    if ((word >> 10 & 7) == 0) value = scale * (2 * RandomUniform(key, i) - 1);
    if ((word >> 13 & 31) == 0) value = (word >> 18 & 1) ? scale : -scale;
    if ((word >> 20 & 31) == 0) value = (word >> 25 & 1) ? 0.0f : -0.0f;
    x[i] = i / 192 % 9 == 5 ? 0.0f : value;
  }
  return x;
}

template <typename T>
void ExpectScalarBytes(const std::vector<T>& x, std::int64_t block_size) {
  const std::int64_t blocks = std::ssize(x) / block_size;
  const auto count = static_cast<std::size_t>(blocks);
  const auto half = static_cast<std::size_t>(block_size / 2);
  for (const EncodeTable* table : kTables) {
    for (const bool has_scales : {false, true}) {
      std::vector<std::uint8_t> packed(count * half, 0xcd);
      std::vector<std::uint8_t> expected(count * half, 0xab);
      std::vector<float> scales(count, -1);
      std::vector<float> expected_scales(count, -1);
      for (std::int64_t b = 0; b < blocks; ++b) {
        const T* values = x.data() + b * block_size;
        float& scale = expected_scales[b];
        scale = std::bit_cast<float>(MaxMagnitudeBits(values, block_size));
        if (has_scales) {
          scale *= 0.75f;
          scales[b] = scale;
        }
        EncodeSpan(values, block_size, NormalizerOf(*table, true, &scale), *table, expected.data(),
                   b * block_size);
      }
      const EncodeRun run = {x.data(), kDTypeOf<T>,   blocks,        block_size,
                             table,    packed.data(), scales.data(), has_scales};
      ASSERT_EQ(EncodeBlocks(run), blocks);
      ASSERT_EQ(packed, expected) << "block size " << block_size;
      ASSERT_EQ(scales, expected_scales) << "block size " << block_size;
    }
  }
}

TEST_P(TargetsTest, EncodesLikeScalarCode) {
  for (const std::int64_t block_size : {32, 64, 96, 128, 4096}) {
    for (const EncodeTable* table : kTables) {
      const std::vector<float> x =
          DelicateValues(*table, 12 * 4096, static_cast<std::uint64_t>(block_size));
      ExpectScalarBytes(x, block_size);
      std::vector<BFloat16> brain;
      std::vector<Float16> half;
      for (const float value : x) {
        brain.push_back(ToBFloat16(value));
        half.push_back(ToFloat16(std::clamp(value, -6e4f, 6e4f)));
      }
      ExpectScalarBytes(brain, block_size);
      ExpectScalarBytes(half, block_size);
    }
  }
}

TEST_P(TargetsTest, FindsTheFirstBlockThatIsNotFinite) {
  for (const std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xff800001u}) {
    for (const std::int64_t at : {0, 63, 64, 1000, 64 * 40 - 1}) {
      std::vector<float> x = Normal(64 * 40, 3);
      x[at] = std::bit_cast<float>(bits);
      std::vector<std::uint8_t> packed(x.size() / 2);
      std::vector<float> scales(40);
      const EncodeRun run = {x.data(),      DType::kF32,   40,   64, &kNf4Table,
                             packed.data(), scales.data(), false};
      EXPECT_EQ(EncodeBlocks(run), at / 64);
    }
  }
}

template <typename T>
void ExpectScalarValues() {
  for (const std::int64_t block_size : {32, 64, 96, 128, 4096}) {
    const std::int64_t blocks = 30;
    const RandomKey key = MakeKey(9, RandomPlace::kTest, static_cast<std::uint64_t>(block_size));
    std::vector<std::uint8_t> packed(blocks * block_size / 2);
    for (std::size_t i = 0; i < packed.size(); ++i) {
      packed[i] = static_cast<std::uint8_t>(RandomWord(key, i));
    }
    std::vector<float> scales;
    for (std::uint64_t b = 0; b < 30; ++b) {
      // Every magnitude, so that float16 overflows and goes subnormal; and NaN.
      scales.push_back(b == 17 ? std::nanf("")
                               : std::ldexp(RandomUniform(key, b), static_cast<int>(b) * 4 - 60));
    }
    for (const QuantType type : kTypes) {
      const float* code = CodebookOf(type);
      std::vector<T> expected(blocks * block_size);
      for (std::int64_t b = 0; b < blocks; ++b) {
        DecodeSpan(packed.data(), b * block_size, block_size, BlockValues(code, scales[b]),
                   expected.data() + b * block_size);
      }
      for (const bool stream : {false, true}) {
        // One element off, so that streaming meets unaligned memory too.
        for (const std::size_t offset : {0, 1}) {
          std::vector<T> storage(expected.size() + 64 / sizeof(T) + 2);
          const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
          const std::size_t skip = (64 - address % 64) % 64 / sizeof(T) + offset;
          const DecodeRun run = {packed.data(), blocks,        block_size,
                                 code,          scales.data(), storage.data() + skip,
                                 kDTypeOf<T>,   stream};
          DecodeBlocks(run);
          ASSERT_EQ(
              std::memcmp(storage.data() + skip, expected.data(), expected.size() * sizeof(T)), 0)
              << "block size " << block_size << " offset " << offset;
        }
      }
    }
  }
}

TEST_P(TargetsTest, DecodesLikeScalarCode) {
  ExpectScalarValues<float>();
  ExpectScalarValues<BFloat16>();
  ExpectScalarValues<Float16>();
}

// Every float in [-1, 1] (and a little beyond), as a value of a block with scale 1. Takes minutes:
// run with --gtest_also_run_disabled_tests after a change to the thresholds or the kernels.
TEST_P(TargetsTest, DISABLED_EveryFloat) {
  if (GetParam() == SimdTarget::kScalar) GTEST_SKIP() << "the scalar code is what is compared with";
  constexpr std::int64_t kBlock = 1 << 16;
  std::vector<float> x(kBlock);
  std::vector<std::uint8_t> packed(kBlock / 2);
  std::vector<std::uint8_t> expected(kBlock / 2);
  for (const EncodeTable* table : kTables) {
    for (std::uint64_t begin = 0; begin < std::uint64_t{1} << 32; begin += kBlock) {
      if ((begin & 0x7fffffff) >= 0x40000000) continue;  // |x| >= 2
      for (std::int64_t i = 0; i < kBlock; ++i) {
        x[i] =
            std::bit_cast<float>(static_cast<std::uint32_t>(begin) + static_cast<std::uint32_t>(i));
      }
      float scale = 1;
      const EncodeRun run = {x.data(), DType::kF32, 1, kBlock, table, packed.data(), &scale, true};
      ASSERT_EQ(EncodeBlocks(run), 1);
      EncodeSpan(x.data(), kBlock, NormalizerOf(*table, true, &scale), *table, expected.data(), 0);
      ASSERT_EQ(packed, expected) << "from bits " << begin;
    }
  }
}

}  // namespace
}  // namespace qlora
