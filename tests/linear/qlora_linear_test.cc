#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/file.h"
#include "io/bnb.h"
#include "io/safetensors.h"
#include "io/test_util.h"
#include "qlora/linear.h"
#include "quant/quant_test_util.h"

namespace qlora {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

constexpr std::int64_t kOut = 48;
constexpr std::int64_t kIn = 80;
constexpr std::int64_t kRank = 4;
constexpr std::int64_t kRows = 5;

std::vector<float> Poison(std::int64_t n) {
  return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
}

std::span<const float> Values(const ConstMatrixView& m) {
  return {m.Row<float>(0), static_cast<std::size_t>(m.rows * m.cols)};
}

std::vector<float> MakeWeight() { return Normal(kOut * kIn, 1, 0.1); }

// A layer with an adapter that does something.
QLoraLinear MakeLayer(Context& context, QLoraConfig config, const compat::Matrix& weight) {
  config.r = kRank;
  config.lora_alpha = 6;
  QLoraLinear layer = QLoraLinear::FromQuantized(context, weight, config, Normal(kOut, 2));
  layer.SetB(MakeView(Normal(kOut * kRank, 3, 0.2).data(), kOut, kRank));
  return layer;
}
QLoraLinear MakeLayer(Context& context, const QLoraConfig& config = {}) {
  return MakeLayer(context, config,
                   Quantize(context, MakeView(MakeWeight().data(), kOut, kIn), config.quantize));
}

// The same in another form.
QLoraLinear MakeLayerAs(Context& context, const compat::Options& options,
                        const QLoraConfig& config = {}) {
  return MakeLayer(context, config,
                   compat::Quantize(context, MakeView(MakeWeight().data(), kOut, kIn), options));
}

// W (O, I) + scale * B A in double.
std::vector<double> EffectiveWeight(const QLoraLinear& layer, double scale) {
  std::vector<float> w = Poison(kOut * kIn);
  layer.DequantizeWeight(MakeView(w.data(), kOut, kIn));
  std::vector<double> out(w.begin(), w.end());
  for (std::int64_t o = 0; o < kOut; ++o) {
    for (std::int64_t i = 0; i < kIn; ++i) {
      for (std::int64_t r = 0; r < kRank; ++r) {
        out[o * kIn + i] +=
            scale * double{layer.b().Row<float>(o)[r]} * double{layer.a().Row<float>(r)[i]};
      }
    }
  }
  return out;
}

// Float32 sums of kIn products of numbers of about this size, with room for the order of addition.
constexpr double kTolerance = 64 * kIn * 0x1p-24;

std::vector<double> Product(const std::vector<double>& w, std::span<const float> bias,
                            const std::vector<float>& x) {
  std::vector<double> y(kRows * kOut);
  for (std::int64_t n = 0; n < kRows; ++n) {
    for (std::int64_t o = 0; o < kOut; ++o) {
      double sum = bias[o];
      for (std::int64_t i = 0; i < kIn; ++i) {
        sum += w[o * kIn + i] * x[n * kIn + i];
      }
      y[n * kOut + o] = sum;
    }
  }
  return y;
}

void ExpectNear(const std::vector<float>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], kTolerance * (1 + std::abs(expected[i]))) << i;
  }
}

class QLoraLinearForms : public ::testing::TestWithParam<int> {};

QLoraLinear MakeForm(Context& context, int form) {
  using compat::ScaleForm;
  switch (form) {
    case 1:
      return MakeLayerAs(context, {.scale_form = ScaleForm::kF32});
    case 2:
      return MakeLayerAs(context, {.zero_point = true});
    case 3:
      return MakeLayerAs(context, {.row_blocks = true});
    case 4:
      return MakeLayer(context, {.use_rslora = true});
    case 5:
      return MakeLayerAs(context, {.scale_form = ScaleForm::kF16});
    case 6:
      return MakeLayerAs(
          context, {.scale_form = ScaleForm::kDoubleTorchao, .rule = compat::EncodeRule::kTorchao});
    default:
      return MakeLayer(context);
  }
}

TEST_P(QLoraLinearForms, ForwardMergeAndUnmergeAgree) {
  Context context(2);
  QLoraLinear layer = MakeForm(context, GetParam());
  const double scale = GetParam() == 4 ? 3.0 : 1.5;
  EXPECT_EQ(layer.scaling(), scale);
  const std::vector<float> x = Normal(kRows * kIn, 4);
  std::vector<float> y = Poison(kRows * kOut);
  layer.Forward(MakeView(x.data(), kRows, kIn), MakeView(y.data(), kRows, kOut));
  const std::vector<double> w = EffectiveWeight(layer, scale);
  ExpectNear(y, Product(w, layer.bias(), x));

  // One row alone is the same bits as in a batch of it alone, and close to the batch.
  std::vector<float> single = Poison(kOut);
  layer.Forward(MakeView(x.data(), 1, kIn), MakeView(single.data(), 1, kOut));
  for (std::size_t o = 0; o < single.size(); ++o) EXPECT_NEAR(single[o], y[o], kTolerance);

  std::vector<float> merged_weight = Poison(kOut * kIn);
  layer.MergedWeight(MakeView(merged_weight.data(), kOut, kIn));
  for (std::size_t i = 0; i < w.size(); ++i) {
    EXPECT_EQ(merged_weight[i], static_cast<float>(w[i])) << i;
  }
  layer.Merge();
  EXPECT_TRUE(layer.merged());
  std::vector<float> y_merged = Poison(kRows * kOut);
  layer.Forward(MakeView(x.data(), kRows, kIn), MakeView(y_merged.data(), kRows, kOut));
  ExpectNear(y_merged, Product(w, layer.bias(), x));
  layer.Unmerge();
  std::vector<float> y_again = Poison(kRows * kOut);
  layer.Forward(MakeView(x.data(), kRows, kIn), MakeView(y_again.data(), kRows, kOut));
  EXPECT_EQ(y_again, y);
}

// dx = dy (W + s B A), dB = s dy^T (x A^T), dA = (s dy B)^T x, twice because gradients add up.
TEST_P(QLoraLinearForms, BackwardAddsTheGradients) {
  Context context(2);
  QLoraLinear layer = MakeForm(context, GetParam());
  const std::vector<float> x = Normal(kRows * kIn, 4);
  const std::vector<float> dy = Normal(kRows * kOut, 5);
  std::vector<float> dx = Poison(kRows * kIn);
  for (int pass = 0; pass < 2; ++pass) {
    layer.Backward(MakeView(x.data(), kRows, kIn), MakeView(dy.data(), kRows, kOut),
                   MakeView(dx.data(), kRows, kIn));
  }
  const double s = layer.scaling();
  const std::vector<double> w = EffectiveWeight(layer, s);
  std::vector<double> dx_expected(dx.size());
  std::vector<double> da(kRank * kIn);
  std::vector<double> db(kOut * kRank);
  for (std::int64_t n = 0; n < kRows; ++n) {
    const float* xn = x.data() + n * kIn;
    const float* dyn = dy.data() + n * kOut;
    for (std::int64_t o = 0; o < kOut; ++o) {
      for (std::int64_t i = 0; i < kIn; ++i) {
        dx_expected[n * kIn + i] += dyn[o] * w[o * kIn + i];
      }
      for (std::int64_t r = 0; r < kRank; ++r) {
        for (std::int64_t i = 0; i < kIn; ++i) {
          db[o * kRank + r] += 2 * s * dyn[o] * double{xn[i]} * double{layer.a().Row<float>(r)[i]};
          da[r * kIn + i] += 2 * s * dyn[o] * double{layer.b().Row<float>(o)[r]} * double{xn[i]};
        }
      }
    }
  }
  ExpectNear(dx, dx_expected);
  const auto values = [](const MatrixView& m) {
    const std::span<const float> v = Values(m);
    return std::vector<float>(v.begin(), v.end());
  };
  ExpectNear(values(layer.da()), da);
  ExpectNear(values(layer.db()), db);
  layer.ZeroGradients();
  EXPECT_THAT(values(layer.da()), Each(0.0f));
}

INSTANTIATE_TEST_SUITE_P(Forms, QLoraLinearForms, ::testing::Range(0, 7));

TEST(QLoraLinear, DropoutIsAFunctionOfItsStep) {
  Context context(2);
  QLoraConfig config;
  config.lora_dropout = 0.5;
  QLoraLinear layer = MakeLayer(context, config);
  const std::vector<float> x = Normal(kRows * kIn, 4);
  const auto forward = [&](std::optional<std::uint64_t> step) {
    std::vector<float> y = Poison(kRows * kOut);
    layer.Forward(MakeView(x.data(), kRows, kIn), MakeView(y.data(), kRows, kOut), step);
    return y;
  };
  EXPECT_EQ(forward(7), forward(7));
  EXPECT_NE(forward(7), forward(8));
  EXPECT_NE(forward(7), forward({}));
  // db is s dy^T u with the same mask: for dy = 1, each row of db is s times the sum of u, and y
  // differs from the base by s u B^T.
  const std::vector<float> y = forward(7);
  const std::vector<float> ones(kRows * kOut, 1.0f);
  layer.Backward(MakeView(x.data(), kRows, kIn), MakeView(ones.data(), kRows, kOut), {}, 7);
  std::vector<double> sum_y(kOut);
  for (std::size_t i = 0; i < y.size(); ++i) sum_y[i % kOut] += y[i];
  QLoraLinear base = MakeLayer(context);
  base.SetB(MakeView(std::vector<float>(kOut * kRank, 0.0f).data(), kOut, kRank));
  std::vector<float> y0 = Poison(kRows * kOut);
  base.Forward(MakeView(x.data(), kRows, kIn), MakeView(y0.data(), kRows, kOut));
  for (std::size_t i = 0; i < y0.size(); ++i) sum_y[i % kOut] -= y0[i];
  for (std::int64_t o = 0; o < kOut; ++o) {
    double expected = 0;
    for (std::int64_t r = 0; r < kRank; ++r) {
      expected += double{layer.db().Row<float>(o)[r]} * double{layer.b().Row<float>(o)[r]};
    }
    EXPECT_NEAR(sum_y[o], expected, kRows * kTolerance);
  }
}

TEST(QLoraLinear, StartsAsTheBase) {
  Context context(1);
  QLoraLinear layer = QLoraLinear::FromWeight(
      context, MakeView(Normal(kOut * kIn, 1).data(), kOut, kIn), {.r = kRank});
  EXPECT_THAT(Values(layer.b()), Each(0.0f));
  const float bound = 1 / std::sqrt(static_cast<float>(kIn));
  float most = 0;
  for (const float a : Values(layer.a())) most = std::max(most, std::abs(a));
  EXPECT_LE(most, bound);
  EXPECT_GT(most, 0.9f * bound);
}

TEST(QLoraLinear, CountsParametersAndBytes) {
  Context context(1);
  // 32 x 16 in groups of 64 with float32 scales and zero points, rank 4.
  std::vector<float> w(512);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = 0.01f * static_cast<float>(i);
  const compat::Matrix weight =
      compat::Quantize(context, MakeView(w.data(), 32, 16),
                       {.scale_form = compat::ScaleForm::kF32, .zero_point = true});
  QLoraLinear layer = QLoraLinear::FromQuantized(context, weight, {.r = 4});
  EXPECT_EQ(layer.trainable_params(), 192);
  EXPECT_EQ(layer.total_params(), 192 + 512);
  EXPECT_EQ(layer.memory_saved_bytes(), 1728);
  EXPECT_EQ(layer.size_bytes(), 256 + 8 * 8 + 4 * 192);
  EXPECT_EQ(layer.group_size(), 64);
  // The middles of the ranges of the blocks.
  EXPECT_EQ(layer.zero_point().size(), 8);
  EXPECT_FLOAT_EQ(layer.zero_point()[0], 0.315f);
  EXPECT_TRUE(MakeLayer(context).zero_point().empty());
}

// y = W x of the deterministic weight 0.01 * index in groups of 32, as another program printed
// it (with float32 sums, hence the tolerance).
TEST(QLoraLinear, ForwardOfOnes) {
  Context context(1);
  std::vector<float> w(128);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = 0.01f * static_cast<float>(i);
  QLoraLinear layer = QLoraLinear::FromWeight(
      context, MakeView(w.data(), 16, 8),
      {.r = 4, .quantize = {.block_size = 32, .scale_type = ScaleType::kF32}});
  const std::vector<float> ones(8, 1.0f);
  std::vector<float> y = Poison(16);
  layer.Forward(MakeView(ones.data(), 1, 8), MakeView(y.data(), 1, 16));
  const std::vector<double> expected = {
      0.27529966831207275, 0.8767109513282776, 1.5941115617752075, 2.2223498821258545,
      2.835589647293091,   3.5426883697509766, 3.818239688873291,  5.039999961853027,
      5.494472026824951,   5.494472026824951,  7.073617935180664,  7.599999904632568,
      7.345241546630859,   8.048931121826172,  10.15999984741211,  10.15999984741211};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-5);
  std::vector<float> back = Poison(128);
  layer.DequantizeWeight(MakeView(back.data(), 16, 8));
  float most = 0;
  for (std::size_t i = 0; i < w.size(); ++i) most = std::max(most, std::abs(back[i] - w[i]));
  EXPECT_FLOAT_EQ(most, 0.17184484f);
}

TEST(QLoraLinear, ActivationsMayBeBfloat16) {
  Context context(1);
  QLoraLinear layer = MakeLayer(context, {.compute = DType::kBF16});
  const std::vector<float> x = Normal(kRows * kIn, 4);
  std::vector<BFloat16> x16;
  for (const float v : x) x16.push_back(ToBFloat16(v));
  std::vector<BFloat16> y16(kRows * kOut, BFloat16{0x7fc0});
  layer.Forward(MakeView(x16.data(), kRows, kIn), MakeView(y16.data(), kRows, kOut));
  const std::vector<double> y = Product(EffectiveWeight(layer, 1.5), layer.bias(), x);
  // Both operands of each product and the result are rounded to 8 bits.
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(ToFloat(y16[i]), y[i], 0.01 * (1 + std::abs(y[i]))) << i;
  }
}

TEST(QLoraLinear, SaveAndLoad) {
  TemporaryFolder folder;
  Context context(1);
  QLoraConfig config;
  config.quantize.type = QuantType::kFp4;
  config.lora_dropout = 0.25;
  config.use_rslora = true;
  config.seed = 9;
  QLoraLinear layer = MakeLayer(context, config);
  layer.Save(folder / "layer.safetensors");
  QLoraLinear loaded = QLoraLinear::Load(context, folder / "layer.safetensors");
  EXPECT_THAT(Values(loaded.a()), ElementsAreArray(Values(layer.a())));
  EXPECT_THAT(Values(loaded.b()), ElementsAreArray(Values(layer.b())));
  EXPECT_THAT(loaded.bias(), ElementsAreArray(layer.bias()));
  EXPECT_EQ(loaded.scaling(), layer.scaling());
  EXPECT_EQ(loaded.config().lora_dropout, 0.25);
  EXPECT_EQ(loaded.config().seed, 9u);
  std::vector<float> w = Poison(kOut * kIn);
  std::vector<float> w_loaded = Poison(kOut * kIn);
  layer.DequantizeWeight(MakeView(w.data(), kOut, kIn));
  loaded.DequantizeWeight(MakeView(w_loaded.data(), kOut, kIn));
  EXPECT_EQ(w_loaded, w);
  // What was read is written again byte by byte, and its weight is one of bitsandbytes.
  loaded.Save(folder / "again.safetensors");
  EXPECT_EQ(ReadTextFile(folder / "again.safetensors"), ReadTextFile(folder / "layer.safetensors"));
  const auto reader = OpenSafetensors(folder / "layer.safetensors");
  ASSERT_TRUE(HasQuantState(*reader, "weight"));
  EXPECT_EQ(ReadBnb(*reader, "weight").layout.type, QuantType::kFp4);
  // A weight that was quantized elsewhere is saved as what it is.
  QLoraLinear::FromQuantized(context, layer.weight()).Save(folder / "own.safetensors");
  EXPECT_EQ(ReadBnb(*OpenSafetensors(folder / "own.safetensors"), "weight").layout.type,
            QuantType::kFp4);
}

TEST(QLoraLinear, AClonedLayerIsTheSameAndSeparate) {
  Context context(2);
  QLoraLinear layer = MakeLayer(context, {.lora_dropout = 0.5, .use_rslora = true});
  const std::vector<float> x = Normal(kRows * kIn, 5);
  const std::vector<float> dy = Normal(kRows * kOut, 6);
  const ConstMatrixView in = MakeView(x.data(), kRows, kIn);
  layer.Backward(in, MakeView(dy.data(), kRows, kOut), {}, 7);
  layer.Merge();
  QLoraLinear clone = layer.Clone();
  EXPECT_TRUE(clone.merged());
  EXPECT_EQ(clone.weight().storage(), layer.weight().storage());
  EXPECT_THAT(Values(clone.da()), ElementsAreArray(Values(layer.da())));
  EXPECT_THAT(Values(clone.db()), ElementsAreArray(Values(layer.db())));
  const auto forward = [&](QLoraLinear& of) {
    std::vector<float> y = Poison(kRows * kOut);
    of.Forward(in, MakeView(y.data(), kRows, kOut), 9);
    return y;
  };
  EXPECT_EQ(forward(clone), forward(layer));
  clone.Unmerge();
  EXPECT_TRUE(layer.merged());
  layer.Unmerge();
  EXPECT_EQ(forward(clone), forward(layer));
  clone.SetB(MakeView(Normal(kOut * kRank, 8).data(), kOut, kRank));
  clone.ZeroGradients();
  EXPECT_NE(forward(clone), forward(layer));
  EXPECT_THAT(Values(layer.da()), ::testing::Not(Each(0.0f)));
}

// x W^T is off by half a code of each operand at most, beside what bfloat16 rounds.
TEST(QLoraLinear, MultipliesInEightBits) {
  Context context(2);
  QLoraLinear coded = MakeLayer(context, {.compute = DType::kI8});
  QLoraLinear plain = MakeLayer(context, {.compute = DType::kBF16});
  const std::vector<float> x = Normal(kRows * kIn, 4);
  const auto forward = [&](QLoraLinear& layer) {
    std::vector<float> y = Poison(kRows * kOut);
    layer.Forward(MakeView(x.data(), kRows, kIn), MakeView(y.data(), kRows, kOut));
    return y;
  };
  const std::vector<float> found = forward(coded);
  const std::vector<float> expected = forward(plain);
  EXPECT_NE(found, expected);
  std::vector<float> w = Poison(kOut * kIn);
  coded.DequantizeWeight(MakeView(w.data(), kOut, kIn));
  const auto magnitude = [](float a, float b) { return std::abs(a) < std::abs(b); };
  const double half_w = std::abs(*std::ranges::max_element(w, magnitude)) / 254;
  for (std::int64_t n = 0; n < kRows; ++n) {
    const std::span<const float> row = std::span<const float>(x).subspan(n * kIn, kIn);
    const double half_x = std::abs(*std::ranges::max_element(row, magnitude)) / 254;
    for (std::int64_t o = 0; o < kOut; ++o) {
      double bound = 0;
      for (std::int64_t i = 0; i < kIn; ++i) {
        const double weight = std::abs(w[o * kIn + i]);
        bound += half_w * std::abs(row[i]) + half_x * (weight + half_w) +
                 0x1p-7 * weight * std::abs(row[i]);
      }
      EXPECT_NEAR(found[n * kOut + o], expected[n * kOut + o], bound) << n << ' ' << o;
    }
  }
  TemporaryFolder folder;
  QLoraLinear both = MakeLayer(context, {.compute = DType::kI8, .int8_backward = true});
  both.Save(folder.path() / "layer.safetensors");
  QLoraLinear loaded = QLoraLinear::Load(context, folder.path() / "layer.safetensors");
  EXPECT_EQ(loaded.config().compute, DType::kI8);
  EXPECT_TRUE(loaded.config().int8_backward);
  EXPECT_EQ(forward(loaded), found);
}

TEST(QLoraLinear, RefusesWhatDoesNotFit) {
  TemporaryFolder folder;
  Context context(1);
  const std::vector<float> w = Normal(kOut * kIn, 1);
  const auto make = [&](const QLoraConfig& config, std::int64_t bias = 0) {
    return QLoraLinear::FromWeight(context, MakeView(w.data(), kOut, kIn), config, Normal(bias, 2));
  };
  ExpectRefused([&] { make({.r = 0}); }, "rank r >= 1, found 0");
  ExpectRefused([&] { make({.lora_alpha = -1}); }, "lora_alpha > 0, found -1");
  ExpectRefused([&] { make({.lora_dropout = 1}); }, "lora_dropout in [0, 1), found 1");
  ExpectRefused([&] { make({.compute = DType::kF16}); }, "compute F32, BF16 or I8, found F16");
  ExpectRefused([&] { make({.compute = DType::kBF16, .int8_backward = true}); },
                "int8_backward would have no effect with compute_dtype bfloat16");
  // Weights that are decoded before use have no codes.
  const QLoraConfig coded = {.compute = DType::kI8};
  ExpectRefused([&] { MakeLayerAs(context, {.zero_point = true}, coded); },
                "int8 would have no effect with zero_point");
  ExpectRefused([&] { MakeLayerAs(context, {.row_blocks = true}, coded); },
                "int8 would have no effect with row_blocks");
  MakeLayerAs(context, {.block_size = 16, .row_blocks = true}, coded);
  ExpectRefused([&] { make({}, 3); }, "expected 48 values of bias, one per row, found 3");

  QLoraLinear layer = MakeLayer(context);
  std::vector<float> x(kRows * kIn);
  std::vector<float> y(kRows * kOut);
  const auto forward = [&](std::int64_t in, std::int64_t out) {
    layer.Forward(MakeView(x.data(), kRows, in), MakeView(y.data(), kRows, out));
  };
  ExpectRefused([&] { forward(kIn - 1, kOut); }, "expected x of shape (5, 80), found (5, 79)");
  ExpectRefused([&] { forward(kIn, kOut - 1); }, "expected y of shape (5, 48), found (5, 47)");
  ExpectRefused([&] { layer.SetA(MakeView(x.data(), 2, kIn)); }, "expected A of shape (4, 80)");
  std::vector<float> b = Normal(kOut * kRank, 3);
  b[7] = std::numeric_limits<float>::infinity();
  ExpectRefused([&] { layer.SetB(MakeView(b.data(), kOut, kRank)); },
                "B holds a NaN or Inf at row 1, column 3");
  ExpectRefused([&] { layer.Unmerge(); }, "not merged");
  layer.Merge();
  ExpectRefused([&] { layer.Merge(); }, "merged already");
  ExpectRefused([&] { layer.SetA(layer.a()); }, "unmerge before setting A");
  ExpectRefused(
      [&] { layer.Backward(MakeView(x.data(), kRows, kIn), MakeView(y.data(), kRows, kOut), {}); },
      "unmerge before the backward pass");

  for (const int form : {2, 3, 5, 6}) {
    QLoraLinear other = MakeForm(context, form);
    ExpectRefused([&] { other.Save(folder / "layer.safetensors"); }, "no zero points");
  }
  // A rank whose product with the features is that of the file, but for an overflow.
  MakeLayer(context).Save(folder / "rank.safetensors");
  std::string file = ReadTextFile(folder / "rank.safetensors");
  const std::string rank = "\\\"r\\\":4";
  const std::size_t at = file.find(rank);
  ASSERT_NE(at, std::string::npos);
  // 80 r = 320 modulo 2^64. The header grows by a multiple of 8, so that the data stay aligned.
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  const std::string large = "\\\"r\\\":      1152921504606846980";
  file.replace(at, rank.size(), large);
  header += large.size() - rank.size();
  std::memcpy(file.data(), &header, sizeof(header));
  WriteTextFile(folder / "rank.safetensors", file);
  ExpectRefused([&] { QLoraLinear::Load(context, folder / "rank.safetensors"); },
                "expected aligned values of F32 for shape [1152921504606846980, 80], found 320");
  WriteTextFile(folder / "text.safetensors", "nothing");
  ExpectRefused([&] { QLoraLinear::Load(context, folder / "text.safetensors"); },
                "text.safetensors");
}

TEST(QLoraLinear, ARankWhoseAdapterNoMemoryHoldsIsRefused) {
  Context context(1);
  const std::vector<float> w = MakeWeight();
  EXPECT_THROW(
      QLoraLinear::FromWeight(context, MakeView(w.data(), kOut, kIn), {.r = std::int64_t{1} << 60}),
      Error);
}

}  // namespace
}  // namespace qlora
