// Error statistics on N(0, 1) against values known from numerical integration over the law of the
// largest of B values. The tolerance is four standard errors of this sample, which the test
// estimates from the spread between blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "quant/quant_test_util.h"

namespace qlora {
namespace {

using compat::ScaleForm;
constexpr compat::EncodeRule kTorchao = compat::EncodeRule::kTorchao;

constexpr std::int64_t kSamples = 1 << 22;

const std::vector<float>& Sample() {
  static const std::vector<float> x = Normal(kSamples, 2024);
  return x;
}

struct Estimate {
  double mean = 0;
  double standard_error = 0;
};

// Mean and standard error of the means over groups of `group` consecutive values of f(i).
Estimate EstimateMean(std::int64_t group, const std::function<double(std::size_t)>& f) {
  const std::int64_t groups = kSamples / group;
  double sum = 0;
  double squares = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    double total = 0;
    for (std::int64_t i = g * group; i < (g + 1) * group; ++i) {
      total += f(static_cast<std::size_t>(i));
    }
    const double mean = total / static_cast<double>(group);
    sum += mean;
    squares += mean * mean;
  }
  const auto n = static_cast<double>(groups);
  const double mean = sum / n;
  return {mean, std::sqrt((squares / n - mean * mean) / n)};
}

struct Expected {
  std::int64_t block;
  double rmse;
  double mae;
  double absmax;
};

void ExpectErrors(const QuantizeOptions& options, const Expected& expected) {
  const std::vector<float>& x = Sample();
  const QuantizedMatrix q = QuantizeRow(x, options);
  const std::vector<float> y = DecodedOf(q.view());
  const auto error = [&](std::size_t i) { return double{y[i]} - x[i]; };
  const Estimate mse =
      EstimateMean(expected.block, [&](std::size_t i) { return error(i) * error(i); });
  const Estimate mae =
      EstimateMean(expected.block, [&](std::size_t i) { return std::fabs(error(i)); });
  EXPECT_NEAR(mse.mean, expected.rmse * expected.rmse, 4 * mse.standard_error) << expected.block;
  EXPECT_NEAR(mae.mean, expected.mae, 4 * mae.standard_error) << expected.block;
  if (expected.absmax == 0) return;
  const std::vector<float> scales = ScalesOf(q.view());
  const Estimate absmax = EstimateMean(expected.block, [&](std::size_t i) {
    return double{scales[i / static_cast<std::size_t>(expected.block)]};
  });
  EXPECT_NEAR(absmax.mean, expected.absmax, 4 * absmax.standard_error) << expected.block;
}

TEST(Statistics, ErrorOfEveryBlockSize) {
  const Expected table[] = {
      {32, 0.08731219, 0.06774769, 2.347079},   {64, 0.09197855, 0.07279553, 2.596111},
      {128, 0.09558045, 0.07683546, 2.827558},  {256, 0.09863483, 0.08032933, 3.044225},
      {512, 0.10146188, 0.08353987, 3.248391},  {1024, 0.10423755, 0.08660526, 3.441870},
      {2048, 0.10704358, 0.08959222, 3.626116}, {4096, 0.10990643, 0.09252935, 3.802295},
  };
  for (const Expected& row : table) {
    ExpectErrors({.block_size = row.block, .scale_type = ScaleType::kF32}, row);
  }
}

TEST(Statistics, ErrorOfFp4) {
  ExpectErrors({.type = QuantType::kFp4, .scale_type = ScaleType::kF32},
               {64, 0.12194474, 0.09654555, 0});
}

// The storage of scales moves the error by less than the spread between samples, so the difference
// to float32 scales on the same sample is compared. `rounding` covers the digits of the reference.
void ExpectDifference(const std::vector<float>& y, double rmse, double mae) {
  constexpr double kRmseF32 = 0.091987;
  constexpr double kMaeF32 = 0.072809;
  constexpr double kRounding = 1e-6;
  // The reference is one sample of 3 * 2^23 values; its own error in the difference, from ours.
  const double reference = std::sqrt(kSamples / (3.0 * (1 << 23)));
  const std::vector<float>& x = Sample();
  const std::vector<float> base = DecodedOf(QuantizeRow(x, {.scale_type = ScaleType::kF32}).view());
  const Estimate square = EstimateMean(64, [&](std::size_t i) {
    const double e = double{y[i]} - x[i];
    const double e_base = double{base[i]} - x[i];
    return e * e - e_base * e_base;
  });
  const Estimate absolute = EstimateMean(64, [&](std::size_t i) {
    return std::fabs(double{y[i]} - x[i]) - std::fabs(double{base[i]} - x[i]);
  });
  EXPECT_NEAR(square.mean / (2 * kRmseF32), rmse - kRmseF32,
              4 * (1 + reference) * square.standard_error / (2 * kRmseF32) + kRounding);
  EXPECT_NEAR(absolute.mean, mae - kMaeF32,
              4 * (1 + reference) * absolute.standard_error + kRounding);
}

TEST(Statistics, ErrorOfStoredScales) {
  const auto decoded = [](const compat::Options& options) {
    return DecodedOf(QuantizeRowAs(Sample(), options).view());
  };
  ExpectDifference(decoded({.scale_form = ScaleForm::kF16}), 0.091987, 0.072817);
  ExpectDifference(decoded({.scale_form = ScaleForm::kBF16}), 0.092003, 0.072876);
  ExpectDifference(decoded({.scale_form = ScaleForm::kDoubleBnb}), 0.092010, 0.072882);
  ExpectDifference(decoded({.scale_form = ScaleForm::kDoubleTorchao, .rule = kTorchao}), 0.091996,
                   0.072860);
}

// Relative error of the scales themselves: mean magnitude, largest and bias. The reference, one
// sample as well, is rounded to two digits.
TEST(Statistics, ErrorOfTheScales) {
  struct Row {
    compat::Options options;
    double mean;
    double max;
    double bias;
  };
  const Row rows[] = {
      {{.scale_form = ScaleForm::kF16}, 1.9e-4, 4.9e-4, 0},
      {{.scale_form = ScaleForm::kBF16}, 1.5e-3, 3.9e-3, 0},
      {{.scale_form = ScaleForm::kDoubleBnb}, 1.60e-3, 1.2e-2, 2e-6},
      {{.scale_form = ScaleForm::kDoubleTorchao, .rule = kTorchao}, 1.19e-3, 6.1e-3, -1.4e-5},
  };
  const std::vector<float> exact =
      ScalesOf(QuantizeRow(Sample(), {.scale_type = ScaleType::kF32}).view());
  for (const Row& row : rows) {
    SCOPED_TRACE(static_cast<int>(row.options.scale_form));
    const std::vector<float> stored = ScalesOf(QuantizeRowAs(Sample(), row.options).view());
    const auto error = [&](std::size_t i) { return stored[i / 64] / double{exact[i / 64]} - 1; };
    const Estimate mean = EstimateMean(64, [&](std::size_t i) { return std::fabs(error(i)); });
    const Estimate bias = EstimateMean(64, error);
    double largest = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      largest = std::max(largest, std::fabs(error(64 * i)));
    }
    EXPECT_NEAR(mean.mean, row.mean, 2 * 4 * mean.standard_error + 0.025 * row.mean);
    EXPECT_NEAR(bias.mean, row.bias, 2 * 4 * bias.standard_error + 1e-6);
    // The largest of many: of the same order in every sample.
    EXPECT_LT(largest, 1.5 * row.max);
    EXPECT_GT(largest, row.max / 1.5);
  }
}

// Rows of 1024 values and different sigma; errors in units of the sigma of the row. The reference
// is one sample of such rows, with a sampling error like ours.
void ExpectRowErrors(const std::function<double(std::size_t)>& sigma_of_row, double single,
                     double bnb, double torchao) {
  constexpr std::size_t kCols = 1024;
  std::vector<float> x = Sample();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= static_cast<float>(sigma_of_row(i / kCols));
  const std::pair<ScaleForm, double> rows[] = {{ScaleForm::kF32, single},
                                               {ScaleForm::kDoubleBnb, bnb},
                                               {ScaleForm::kDoubleTorchao, torchao}};
  for (const auto& [form, rmse] : rows) {
    SCOPED_TRACE(static_cast<int>(form));
    const std::vector<float> y = DecodedOf(QuantizeRowAs(x, {.scale_form = form}).view());
    // Groups of the values whose scales are quantized together.
    const Estimate square = EstimateMean(64 * 256, [&](std::size_t i) {
      const double error = (double{y[i]} - x[i]) / sigma_of_row(i / kCols);
      return error * error;
    });
    EXPECT_NEAR(square.mean, rmse * rmse, 2 * 4 * square.standard_error + 2 * rmse * 5e-4);
  }
}

TEST(Statistics, ErrorOfRowsOfDifferentSpread) {
  const double rows = static_cast<double>(kSamples) / 1024;
  const RandomKey key = MakeKey(5, RandomPlace::kTest);
  // Sigma log-uniform over two decades: shuffled and sorted. One row in a hundred 20 times as
  // large.
  ExpectRowErrors([&](std::size_t r) { return std::pow(10.0, 2 * RandomUniform(key, r) - 2); },
                  0.0920, 0.146, 0.111);
  ExpectRowErrors(
      [&](std::size_t r) { return std::pow(10.0, 2 * static_cast<double>(r) / rows - 2); }, 0.0920,
      0.0962, 0.0932);
  ExpectRowErrors([](std::size_t r) { return r % 100 == 7 ? 20.0 : 1.0; }, 0.0920, 0.0921, 0.0946);
}

std::vector<float> DecodedToBfloat16(const auto& q) {
  std::vector<BFloat16> stored(q.size());
  DequantizeRows(q, 0, MakeView(stored.data(), q.rows, q.cols));
  std::vector<float> out;
  for (const BFloat16 value : stored) out.push_back(ToFloat(value));
  return out;
}

TEST(Statistics, ErrorOfBfloat16Output) {
  // The reference multiplies a bfloat16 codebook by bfloat16 scales.
  std::array<float, 16> rounded;
  for (std::size_t k = 0; k < 16; ++k) rounded[k] = ToFloat(ToBFloat16(kNf4Codebook[k]));
  const compat::Matrix q = QuantizeRowAs(Sample(), {.scale_form = ScaleForm::kBF16});
  compat::View in_bfloat16 = q.view();
  in_bfloat16.code = rounded.data();
  const std::vector<float> y = DecodedToBfloat16(in_bfloat16);
  ExpectDifference(y, 0.092081, 0.072892);

  // The exact product, rounded once, is better.
  const QuantizedMatrix exact = QuantizeRow(Sample(), {.scale_type = ScaleType::kF32});
  EXPECT_LT(Compare(Sample(), DecodedToBfloat16(exact.view())).rmse,
            Compare(Sample(), y).rmse - 5e-5);
}

TEST(Statistics, UseOfTheCodes) {
  const double share[16] = {.0186, .0438, .0585, .0709, .0808, .0880, .0924, .0880,
                            .0811, .0782, .0733, .0666, .0582, .0480, .0363, .0173};
  const std::vector<std::uint8_t> codes =
      CodesOf(QuantizeRow(Sample(), {.scale_type = ScaleType::kF32}).view());
  for (std::uint8_t k = 0; k < 16; ++k) {
    const Estimate use = EstimateMean(64, [&](std::size_t i) { return codes[i] == k ? 1.0 : 0.0; });
    EXPECT_NEAR(use.mean, share[k], 4 * use.standard_error + 5e-5) << int{k};
  }
}

}  // namespace
}  // namespace qlora
