// The definitions of the ops against values worked out by hand, known constants and PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "backend/test_attention.h"
#include "backend/test_linear.h"
#include "qlora/error.h"
#include "test_build.h"

namespace qlora::testing_util {
namespace {

using Rows2d = std::vector<std::vector<double>>;

Matrix Make(const Rows2d& values, DType dtype = DType::kF64) {
  Matrix m(dtype, static_cast<std::int64_t>(values.size()),
           static_cast<std::int64_t>(values[0].size()));
  for (std::int64_t r = 0; r < m.rows(); ++r) {
    for (std::int64_t c = 0; c < m.cols(); ++c) m.Set(r, c, values[r][c]);
  }
  return m;
}

void ExpectValues(const Matrix& m, const Rows2d& values, double tolerance = 1e-15) {
  const Matrix expected = Make(values);
  ExpectWithin(m, expected, Filled(DType::kF64, m.rows(), m.cols(), tolerance), "values");
}

class ReferenceBackendTest : public testing::Test {
 protected:
  const std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
};

TEST_F(ReferenceBackendTest, NeedsNoWorkspace) {
  EXPECT_EQ(backend_->WorkspaceBytes({.rows = 1000, .features = 1000, .vocab = 1000}), 0u);
}

TEST_F(ReferenceBackendTest, EmbedScalesTableRows) {
  const Matrix table = Make({{1, 2}, {3, 4}, {5, -6}}, DType::kBF16);
  Matrix y(DType::kF64, 3, 2);
  backend_->Run(ops::Embed{std::vector<std::int32_t>{2, 0, 2}, table.view(), 0.5f, y.view()});
  ExpectValues(y, {{2.5, -3}, {0.5, 1}, {2.5, -3}});
}

TEST_F(ReferenceBackendTest, RmsNormDividesByTheRootMeanSquare) {
  const Matrix x = Make({{3, 4}, {0, 0}});
  const Matrix w = Make({{1, -2}});
  Matrix y(DType::kF64, 2, 2);
  Matrix rstd(DType::kF64, 1, 2);
  backend_->Run(ops::RmsNorm{x.view(), w.view(), 0.25f, y.view(), rstd.view()});
  const double r = 1 / std::sqrt(12.75);
  ExpectValues(rstd, {{r, 2}});
  ExpectValues(y, {{3 * r, -8 * r}, {0, 0}});
}

TEST_F(ReferenceBackendTest, LinearAddsBiasAndScaledAdapter) {
  const Matrix w = Make({{1, 2}, {0, -1}, {4, 4}}, DType::kF16);
  const Matrix bias = Make({{10, 20, 30}});
  const Matrix a = Make({{1, -1}});
  const Matrix b = Make({{1}, {2}, {0}});
  const Matrix x = Make({{5, 3}});
  Matrix y = Make({{1, 1, 1}});
  Matrix u(DType::kF64, 1, 1);
  const LinearView linear = {
      .weight = w.view(),
      .bias = bias.view(),
      .lora = {.a = a.view(), .b = b.view(), .scale = 0.5f, .dropout_key = {}}};
  const LinearOutput output = {y.view(), u.view()};
  backend_->Run(ops::Linear{{&linear, 1}, x.view(), {&output, 1}, Store::kSet});
  ExpectValues(u, {{2}});
  ExpectValues(y, {{11 + 10 + 1, -3 + 20 + 2, 32 + 30 + 0}});
  backend_->Run(ops::Linear{{&linear, 1}, x.view(), {&output, 1}, Store::kAdd});
  ExpectValues(y, {{44, 38, 124}});
}

TEST_F(ReferenceBackendTest, FourBitWeightIsCodeTimesScaleHighNibbleFirst) {
  // Three rows of three values in blocks of four: blocks cross row ends, the last one is short.
  const std::vector<std::uint8_t> packed = {0x0f, 0x7e, 0xf0, 0xd5, 0x30};
  const std::vector<float> scales = {2, 10, 0.5f};
  QuantizedView q;
  q.packed = packed.data();
  q.rows = q.cols = 3;
  q.block_size = 4;
  q.code = kNf4Codebook.data();
  q.scales = scales.data();
  const Matrix x = Make({{1, 0, 0}, {0, 1, 0}, {0, 0, 1}});
  Matrix y(DType::kF64, 3, 3);
  const LinearView linear = {.weight = q, .bias = {}, .lora = {}};
  const LinearOutput output = {y.view(), {}};
  backend_->Run(ops::Linear{{&linear, 1}, x.view(), {&output, 1}, Store::kSet});
  const auto& code = kNf4Codebook;  // W = {{-2, 2, 0}, {2 c14, 10, -10}, {10 c13, 10 c5, c3 / 2}}
  ExpectValues(y, {{-2, 2.0 * code[14], double{10 * code[13]}},
                   {2, 10, double{10 * code[5]}},
                   {0, -10, 0.5 * code[3]}});
}

TEST_F(ReferenceBackendTest, DropoutZeroesAndRescalesTheAdapterInputOnly) {
  LinearCase c{"", 40, 50, {1}, WeightKind::kWide, 1, false, 0.25f};
  LinearGroup group = MakeLinearGroup(c, {DType::kF64, DType::kF64}, DType::kF64, 1);
  group.x = Filled(DType::kF64, 40, 50, 1);
  group.a[0] = Filled(DType::kF64, 1, 50, 1);
  group.b[0] = Filled(DType::kF64, 1, 1, 0);
  LinearGroup plain = group;
  plain.dropout = 0;
  group.Forward(*backend_, Store::kSet);
  plain.Forward(*backend_, Store::kSet);
  ExpectEqual(group.y[0], plain.y[0], "y without the adapter's share");
  const RandomKey key = group.Views()[0].lora.dropout_key;
  int kept = 0;
  for (std::int64_t n = 0; n < 40; ++n) {
    int kept_in_row = 0;
    for (std::int64_t i = 0; i < 50; ++i) {
      kept_in_row += RandomUniform(key, static_cast<std::uint64_t>(n * 50 + i)) >= 0.25f;
    }
    EXPECT_NEAR(group.u[0](n, 0), kept_in_row / 0.75, 1e-12);
    kept += kept_in_row;
  }
  EXPECT_NEAR(kept, 1500, 5 * std::sqrt(2000 * 0.25 * 0.75));
}

TEST_F(ReferenceBackendTest, RopeRotatesPairsOfHalves) {
  const double angle = 0.3;
  const Matrix cos = Make({{1, 1}, {std::cos(angle), std::cos(2 * angle)}});
  const Matrix sin = Make({{0, 0}, {std::sin(angle), std::sin(2 * angle)}});
  const std::vector<std::int32_t> positions = {1, 0};
  // Two heads of five dims: dims 0 and 2, 1 and 3 are pairs, dim 4 is left alone.
  Matrix x = Make({{1, 0, 0, 0, 7, 0, 0, 0, 1, 8}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}});
  const Matrix before = x;
  backend_->Run(ops::Rope{positions, {cos.view(), sin.view()}, 2, false, x.view()});
  ExpectValues(x, {{std::cos(angle), 0, std::sin(angle), 0, 7, 0, -std::sin(2 * angle), 0,
                    std::cos(2 * angle), 8},
                   {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}});
  backend_->Run(ops::Rope{positions, {cos.view(), sin.view()}, 2, true, x.view()});
  ExpectWithin(x, before, Filled(DType::kF64, 2, 10, 1e-15), "inverse");
}

TEST_F(ReferenceBackendTest, RopeRotatesNeighbours) {
  const Matrix cos = Make({{std::cos(0.3), std::cos(0.6)}});
  const Matrix sin = Make({{std::sin(0.3), std::sin(0.6)}});
  const std::vector<std::int32_t> positions = {0};
  // One head of five dims: dims 0 and 1, 2 and 3 are pairs, dim 4 is left alone.
  Matrix x = Make({{1, 0, 0, 1, 7}});
  backend_->Run(ops::Rope{positions, {cos.view(), sin.view(), true}, 1, false, x.view()});
  ExpectValues(x, {{std::cos(0.3), std::sin(0.3), -std::sin(0.6), std::cos(0.6), 7}});
}

// With q = 0 every visible key has the same weight, so o is the mean of the visible v.
class AttentionMeanTest : public ReferenceBackendTest {
 protected:
  void Expect(const AttentionShape& shape, const std::vector<AttentionSpan>& spans,
              const Rows2d& v_rows, const Rows2d& o_rows, const Rows2d& counts) {
    const Matrix v = Make(v_rows);
    const Matrix k = Filled(DType::kF64, v.rows(), v.cols(), 1);
    const auto q_rows = static_cast<std::int64_t>(o_rows.size());
    const Matrix q = Filled(DType::kF64, q_rows, shape.heads * shape.head_dim, 0);
    Matrix o = Poisoned(q);
    Matrix lse(DType::kF64, q_rows, shape.heads);
    backend_->Run(ops::Attention{shape, spans, q.view(), k.view(), v.view(), o.view(), lse.view()});
    ExpectValues(o, o_rows);
    ExpectWithin(lse, Map(Make(counts), DType::kF64, [](Complex x) { return std::log(x.real()); }),
                 Filled(DType::kF64, lse.rows(), lse.cols(), 1e-15), "lse");
  }
};

TEST_F(AttentionMeanTest, Causal) {
  Expect({1, 1, 1, 1.0f}, {{0, 3, 0, 3}}, {{2}, {4}, {9}}, {{2}, {3}, {5}}, {{1}, {2}, {3}});
}

TEST_F(AttentionMeanTest, WindowCountsTheQueryItself) {
  Expect({.heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 1, .window = 2}, {{0, 4, 0, 4}},
         {{2}, {4}, {8}, {0}}, {{2}, {3}, {6}, {4}}, {{1}, {2}, {2}, {2}});
}

TEST_F(AttentionMeanTest, SpansDoNotSeeEachOther) {
  Expect({1, 1, 1, 1.0f}, {{0, 1, 0, 1}, {1, 2, 1, 2}}, {{2}, {4}, {8}}, {{2}, {4}, {6}},
         {{1}, {1}, {2}});
}

TEST_F(AttentionMeanTest, QueriesAreTheLastPositions) {
  Expect({1, 1, 1, 1.0f}, {{0, 2, 0, 4}}, {{2}, {4}, {9}, {1}}, {{5}, {4}}, {{3}, {4}});
}

TEST_F(AttentionMeanTest, NeighbouringQueryHeadsShareAKeyHead) {
  Expect({4, 2, 1, 1.0f}, {{0, 1, 0, 1}}, {{3, 5}}, {{3, 3, 5, 5}}, {{1, 1, 1, 1}});
}

TEST_F(ReferenceBackendTest, AttentionScalesThenCapsScores) {
  const Matrix q = Make({{0, 0}, {2, 1}});
  const Matrix k = Make({{1, 0}, {0, 4}});
  const Matrix v = Make({{1, 0}, {0, 1}});
  Matrix o(DType::kF64, 2, 2);
  Matrix lse(DType::kF64, 2, 1);
  const AttentionShape shape = {1, 1, 2, 0.5f, 3.0f};
  const AttentionSpan span = {0, 2, 0, 2};
  backend_->Run(
      ops::Attention{shape, {&span, 1}, q.view(), k.view(), v.view(), o.view(), lse.view()});
  const double s0 = 3 * std::tanh(1.0 / 3);
  const double s1 = 3 * std::tanh(2.0 / 3);
  const double sum = std::exp(s0) + std::exp(s1);
  ExpectValues(o, {{1, 0}, {std::exp(s0) / sum, std::exp(s1) / sum}});
  EXPECT_NEAR(lse(1, 0), std::log(sum), 1e-15);
}

TEST_F(ReferenceBackendTest, CachedAttentionEqualsTheLastRowOfFullAttention) {
  for (const std::int64_t window : {0, 4}) {
    const AttentionCase full = {"", {4, 2, 8, 0.35f, 0, window}, Packed({13})};
    AttentionData all = MakeAttentionData(full, {DType::kF32, DType::kF32}, DType::kF64, 3);
    AttentionData one = all;
    all.Forward(*backend_, full);
    const AttentionSpan span = {0, 1, 0, 13};
    backend_->Run(ops::Attention{full.shape,
                                 {&span, 1},
                                 Rows(one.q.view(), 12, 1),
                                 one.k.view(),
                                 one.v.view(),
                                 Rows(one.o.view(), 12, 1),
                                 Rows(one.lse.view(), 12, 1)});
    for (std::int64_t c = 0; c < all.o.cols(); ++c) EXPECT_EQ(one.o(12, c), all.o(12, c));
    for (std::int64_t h = 0; h < 4; ++h) EXPECT_EQ(one.lse(12, h), all.lse(12, h));
    EXPECT_TRUE(one.o.GuardsIntact());
  }
}

TEST_F(ReferenceBackendTest, GatedActivationKnownValues) {
  const Matrix gate = Make({{0, 1, -1}});
  const Matrix up = Make({{5, 2, 1}});
  Matrix y(DType::kF64, 1, 3);
  backend_->Run(ops::GatedActivation{Activation::kSilu, gate.view(), up.view(), y.view()});
  const double sigma = 1 / (1 + std::exp(-1.0));
  ExpectValues(y, {{0, 2 * sigma, -(1 - sigma)}});
  backend_->Run(ops::GatedActivation{Activation::kGeluTanh, gate.view(), up.view(), y.view()});
  const double t = std::tanh(std::sqrt(2 / std::numbers::pi) * 1.044715);
  ExpectValues(y, {{0, 1 + t, -0.5 * (1 - t)}});
  backend_->Run(ops::GatedActivation{Activation::kGelu, gate.view(), up.view(), y.view()});
  const double phi = 0.8413447460685429;  // of a normal number below 1
  ExpectValues(y, {{0, 2 * phi, -(1 - phi)}});
}

TEST_F(ReferenceBackendTest, CrossEntropyOfEqualLogitsIsLogV) {
  Matrix logits = Make({{7, 7, 7, 7}});
  Matrix logprob(DType::kF64, 1, 1);
  const std::vector<std::int32_t> targets = {1};
  const Matrix row_scale = Make({{2.0}});
  backend_->Run(ops::CrossEntropy{targets, 0, row_scale.view(), logits.view(), logprob.view()});
  ExpectValues(logprob, {{-std::log(4.0)}});
  ExpectValues(logits, {{0.5, -1.5, 0.5, 0.5}});
}

// p = (3/4, 1/4) and the labels (0.9, 0.1): 0.2 of the target's probability is spread over two.
TEST_F(ReferenceBackendTest, CrossEntropyWithLabelSmoothing) {
  Matrix logits = Make({{std::log(3.0), 0}});
  Matrix logprob(DType::kF64, 1, 1);
  const std::vector<std::int32_t> targets = {0};
  const Matrix row_scale = Make({{2.0}});
  backend_->Run(
      ops::CrossEntropy{targets, 0, row_scale.view(), logits.view(), logprob.view(), {}, 0.2f});
  EXPECT_NEAR(logprob(0, 0), 0.9 * std::log(0.75) + 0.1 * std::log(0.25), 1e-7);
  EXPECT_NEAR(logits(0, 0), 2 * (0.75 - 0.9), 1e-7);
  EXPECT_NEAR(logits(0, 1), 2 * (0.25 - 0.1), 1e-7);
}

TEST_F(ReferenceBackendTest, CrossEntropyWithoutGradientKeepsCappedLogits) {
  Matrix logits = Make({{3, -6}});
  Matrix logprob(DType::kF64, 1, 1);
  const std::vector<std::int32_t> targets = {0};
  Matrix mean(DType::kF64, 1, 1);
  Matrix entropy(DType::kF64, 1, 1);
  backend_->Run(ops::CrossEntropy{
      targets, 3.0f, {}, logits.view(), logprob.view(), {}, 0, mean.view(), entropy.view()});
  const double a = 3 * std::tanh(1.0);
  const double b = 3 * std::tanh(-2.0);
  ExpectValues(logits, {{a, b}});
  ExpectValues(logprob, {{-std::log1p(std::exp(b - a))}});
  ExpectValues(mean, {{(a + b) / 2}});
  const double p = 1 / (1 + std::exp(b - a));
  EXPECT_NEAR(entropy(0, 0), -p * std::log(p) - (1 - p) * std::log1p(-p), 1e-12);
}

// q = (3/4, 1/4) and p = (1/2, 1/2).
TEST_F(ReferenceBackendTest, KlDivergenceIsThatOfTheBase) {
  Matrix base = Make({{std::log(3.0), 0}});
  Matrix logits = Make({{5, 5}});
  Matrix kl(DType::kF64, 1, 1);
  backend_->Run(ops::KlDivergence{0, 2, base.view(), logits.view(), kl.view()});
  EXPECT_NEAR(kl(0, 0), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-15);
  ExpectValues(base, {{0.75, 0.25}});
  ExpectValues(logits, {{-0.5, 0.5}});
}

TEST_F(ReferenceBackendTest, RowMoves) {
  const Matrix x = Make({{1, 2}, {3, 4}});
  Matrix y(DType::kF64, 3, 2);
  backend_->Run(ops::GatherRows{x.view(), std::vector<std::int32_t>{1, 1, 0}, y.view()});
  ExpectValues(y, {{3, 4}, {3, 4}, {1, 2}});
  backend_->Run(ops::ScatterAddRows{x.view(), std::vector<std::int32_t>{2, 0}, y.view()});
  ExpectValues(y, {{6, 8}, {3, 4}, {2, 4}});
  const Matrix z = Make({{1, 0}, {0, 1}, {1, 1}});
  backend_->Run(ops::Add{z.view(), y.view()});
  ExpectValues(y, {{7, 8}, {3, 5}, {3, 5}});
}

TEST_F(ReferenceBackendTest, SumOfSquaresOfComplexIsOfRealParts) {
  Matrix x = Make({{3, 4}});
  EXPECT_EQ(SumOfSquaresOf(*backend_, x.view()), 25);
  Matrix complex = Convert(x, DType::kC128);
  complex.Set(0, 0, Complex(3, 5));
  EXPECT_EQ(SumOfSquaresOf(*backend_, complex.view()), 25);
}

TEST_F(ReferenceBackendTest, AdamWFollowsTorch) {
  const nlohmann::json golden =
      nlohmann::json::parse(std::ifstream(SourceDir() / "tests/golden/adamw.json"));
  const auto row = [](const nlohmann::json& values) {
    return Make({values.get<std::vector<double>>()});
  };
  Matrix p = row(golden["initial"]);
  Matrix m = Filled(DType::kF64, 1, p.cols(), 0);
  Matrix v = Filled(DType::kF64, 1, p.cols(), 0);
  UpdateArgs args = {.learning_rate = golden["learning_rate"],
                     .beta1 = golden["betas"][0],
                     .beta2 = golden["betas"][1],
                     .epsilon = golden["eps"],
                     .weight_decay = golden["weight_decay"],
                     .step = 0};
  const Matrix bound = Filled(DType::kF64, 1, p.cols(), 1e-14);
  for (const nlohmann::json& step : golden["steps"]) {
    ++args.step;
    SCOPED_TRACE(args.step);
    const Matrix gradient = row(step["gradient"]);
    backend_->Run(ops::Update{args, gradient.view(), p.view(), {m.view(), {}}, {v.view(), {}}});
    ExpectWithin(p, row(step["parameter"]), bound, "parameter");
    ExpectWithin(m, row(step["m"]), bound, "m");
    ExpectWithin(v, row(step["v"]), bound, "v");
  }
}

TEST_F(ReferenceBackendTest, TakesOneWideTypePerCall) {
  const Matrix x = Make({{1, 2}}, DType::kBF16);
  Matrix y(DType::kF32, 1, 2);
  try {
    backend_->Run(ops::Add{x.view(), y.view()});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRuntime);
    EXPECT_THAT(error.what(), testing::HasSubstr("BF16"));
  }
}

}  // namespace
}  // namespace qlora::testing_util
