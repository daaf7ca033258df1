// Scale search: what it gains, what it respects, and that all targets agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "machine/simd_target.h"
#include "qlora/error.h"
#include "quant/kernels.h"
#include "quant/quant_test_util.h"

namespace qlora {
namespace {

QuantizedMatrix Search(const std::vector<float>& x, QuantizeOptions options) {
  options.scale_search = true;
  return QuantizeRow(x, options);
}

double SquaredError(std::span<const float> x, std::span<const float> y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = double{x[i]} - y[i];
    sum += d * d;
  }
  return sum;
}

TEST(ScaleSearch, ReducesTheErrorOnNormalValues) {
  const std::vector<float> x = Normal(1 << 21, 77);
  const double absmax =
      Compare(x, DecodedOf(QuantizeRow(x, {.scale_type = ScaleType::kF32}).view())).rmse;
  EXPECT_NEAR(absmax, 0.0920, 0.0003);
  for (const ScaleType type : {ScaleType::kF32, ScaleType::kDoubleBnb}) {
    const double rmse = Compare(x, DecodedOf(Search(x, {.scale_type = type}).view())).rmse;
    EXPECT_LE(rmse, 0.0855);
    EXPECT_GE(rmse, 0.0840);
  }
  RecordProperty(
      "rmse_f32",
      std::to_string(
          Compare(x, DecodedOf(Search(x, {.scale_type = ScaleType::kF32}).view())).rmse));
}

TEST(ScaleSearch, IsNeverWorseInAnyBlock) {
  for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
    for (const std::int64_t block : {7, 32, 64, 100, 4096}) {
      std::vector<float> x = Normal(30'000, static_cast<std::uint64_t>(block));
      for (std::size_t i = 0; i < x.size(); i += 97) x[i] *= 20;
      std::fill(x.begin() + 8192, x.begin() + 8192 + 4096, 0.0f);
      const QuantizeOptions options = {
          .type = type, .block_size = block, .scale_type = ScaleType::kF32};
      const std::vector<float> plain = DecodedOf(QuantizeRow(x, options).view());
      const std::vector<float> searched = DecodedOf(Search(x, options).view());
      for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(block)) {
        const std::size_t n = std::min(x.size() - begin, static_cast<std::size_t>(block));
        const std::span<const float> part = std::span(x).subspan(begin, n);
        const double before = SquaredError(part, std::span(plain).subspan(begin, n));
        const double after = SquaredError(part, std::span(searched).subspan(begin, n));
        // The search compares float32 sums of the block divided by its absmax.
        ASSERT_LE(after, before * (1 + 1e-4)) << "block " << block << " at " << begin;
      }
    }
  }
}

TEST(ScaleSearch, KeepsTheFormat) {
  const std::vector<float> x = Normal(64 * 1000, 3);
  const QuantizedMatrix plain = QuantizeRow(x, {});
  const QuantizedMatrix searched = Search(x, {});
  EXPECT_EQ(plain.bytes(), searched.bytes());
  EXPECT_NE(PackedOf(plain.view()), PackedOf(searched.view()));
}

// The error in the output of y = W x is weighted by the mean squares of x.
TEST(ScaleSearch, ImportanceReducesTheWeightedError) {
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kCols = 512;
  const std::vector<float> w = Normal(kRows * kCols, 5, 0.02);
  std::vector<float> importance = Uniform(kCols, 6, 0, 1);
  for (float& value : importance) value = std::pow(value, 6.0f) * 1e4f;
  Context context(2);
  const auto weighted = [&](const QuantizeOptions& options) {
    const QuantizedMatrix q = Quantize(context, MakeView(w.data(), kRows, kCols), options);
    const std::vector<float> y = DecodedOf(q.view());
    double sum = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double d = double{w[i]} - y[i];
      sum += d * d * importance[i % kCols];
    }
    return sum;
  };
  QuantizeOptions options = {.scale_type = ScaleType::kF32};
  const double plain = weighted(options);
  options.scale_search = true;
  const double searched = weighted(options);
  options.importance = importance;
  const double important = weighted(options);
  EXPECT_LT(searched, plain);
  EXPECT_LT(important, 0.9 * searched);
}

TEST(ScaleSearch, EqualImportanceIsNoImportance) {
  const std::vector<float> w = Normal(40 * 96, 5);
  const std::vector<float> ones(96, 1.0f);
  Context context(1);
  const QuantizedMatrix a = Quantize(context, MakeView(w.data(), 40, 96), {.scale_search = true});
  const QuantizedMatrix b =
      Quantize(context, MakeView(w.data(), 40, 96), {.scale_search = true, .importance = ones});
  EXPECT_EQ(PackedOf(a.view()), PackedOf(b.view()));
  EXPECT_EQ(ScalesOf(a.view()), ScalesOf(b.view()));
}

TEST(ScaleSearch, RejectsBadImportance) {
  const std::vector<float> w = Normal(4 * 64, 5);
  Context context(1);
  for (const float bad : {-1.0f, std::nanf(""), HUGE_VALF}) {
    std::vector<float> importance(64, 1.0f);
    importance[9] = bad;
    EXPECT_THROW(Quantize(context, MakeView(w.data(), 4, 64),
                          {.scale_search = true, .importance = importance}),
                 Error);
  }
  const std::vector<float> short_one(63, 1.0f);
  EXPECT_THROW(
      Quantize(context, MakeView(w.data(), 4, 64), {.scale_search = true, .importance = short_one}),
      Error);
  const std::vector<float> ones(64, 1.0f);
  EXPECT_THROW(Quantize(context, MakeView(w.data(), 4, 64), {.importance = ones}), Error);
}

TEST(ScaleSearch, FindsNanAndInf) {
  std::vector<float> x = Normal(100'000, 3);
  x[77'777] = std::nanf("");
  EXPECT_THROW(Search(x, {}), Error);
}

TEST(ScaleSearch, AllTargetsChooseTheSameScale) {
  for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
    for (const std::int64_t n : {16, 32, 64, 4096}) {
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        std::vector<float> x = Normal(n, seed + static_cast<std::uint64_t>(n) * 1000);
        const float absmax = std::fabs(*std::max_element(
            x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
        for (float& value : x) value *= 1.0f / absmax;
        const std::vector<float> weights = Uniform(n, seed, 0, 2);
        const SearchRun run = {x.data(), seed % 2 == 0 ? nullptr : weights.data(), n,
                               &EncodeTableOf(type), CodebookOf(type)};
        const float expected = BestMultiplier(run);
        for (const SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2}) {
          if (std::ranges::count(SimdTargets(), target) == 0) continue;
          SetSimdTarget(target);
          EXPECT_EQ(BestMultiplier(run), expected) << NameOf(target) << " n " << n;
        }
        SetSimdTarget(BestSimdTarget());
      }
    }
  }
}

}  // namespace
}  // namespace qlora
