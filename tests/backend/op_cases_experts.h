// Routing, scaling and dot products of the rows of experts. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_EXPERTS_H_
#define QLORA_TESTS_BACKEND_OP_CASES_EXPERTS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_rows.h"
#include "backend/test_util.h"
#include "backend/test_weight.h"

namespace qlora::testing_util {

// The index lists of a routing, filled with -1.
struct Routing {
  Routing(std::int64_t count, std::int64_t num_experts)
      : experts(count, -1),
        pairs(count, -1),
        tokens(count, -1),
        slots(count, -1),
        begin(num_experts + 1, -1) {}

  RoutingView view() {
    const auto span = [](std::vector<std::int32_t>& v) {
      return IndexSpan{v.data(), std::ssize(v)};
    };
    return {span(experts), span(pairs), span(tokens), span(slots), span(begin)};
  }

  // Slots are the pairs in the order of their experts, pairs of one expert in theirs.
  void ExpectConsistent(std::int64_t per_token) const {
    EXPECT_EQ(begin.front(), 0);
    EXPECT_EQ(begin.back(), std::ssize(experts));
    for (std::size_t e = 0; e + 1 < begin.size(); ++e) {
      for (std::int32_t slot = begin[e]; slot < begin[e + 1]; ++slot) {
        EXPECT_EQ(experts[pairs[slot]], static_cast<std::int32_t>(e));
        EXPECT_EQ(tokens[slot], pairs[slot] / per_token);
        EXPECT_EQ(slots[pairs[slot]], slot);
        if (slot == begin[e]) continue;
        EXPECT_LT(pairs[slot - 1], pairs[slot]);
      }
    }
  }

  std::vector<std::int32_t> experts, pairs, tokens, slots, begin;
};

// Sigmoids with a bias, on which the choice depends and the weights do not, and with a scale.
inline void CompareRouters(Backend& backend, Backend& reference, DType wide, RouterScore score,
                           std::uint64_t seed) {
  const bool sigmoids = score == RouterScore::kSigmoid;
  const float scale = sigmoids ? 2.5f : 1.0f;
  for (const RowsShape& s : RowsShapes()) {
    for (const bool normalize : {false, true}) {
      Random random(++seed);
      const std::int64_t k = std::min<std::int64_t>(s.cols, 1 + random.Below(4));
      const Matrix logits = random.Normal(wide, s.rows, s.cols, sigmoids ? 2 : 3);
      const Matrix bias = random.Normal(wide, 1, s.cols, 0.5);
      const Matrix bias64 = Convert(bias, DType::kF64);
      const Matrix d_weights = random.Normal(wide, s.rows, k, 1);
      Routing routing(s.rows * k, s.cols);
      Routing routing64(s.rows * k, s.cols);
      Matrix weights(wide, s.rows, k);
      Matrix weights64(DType::kF64, s.rows, k);
      backend.Run(ops::RouteExperts{logits.view(), normalize, routing.view(), weights.view(), score,
                                    sigmoids ? bias.view() : ConstMatrixView{}, scale});
      reference.Run(ops::RouteExperts{Convert(logits, DType::kF64).view(), normalize,
                                      routing64.view(), weights64.view(), score,
                                      sigmoids ? bias64.view() : ConstMatrixView{}, scale});
      EXPECT_EQ(routing.experts, routing64.experts);
      routing.ExpectConsistent(k);
      // An error of a logit's size in the exponent, and of the sum.
      const std::int64_t roundings = sigmoids ? k + 20 : s.cols + 40;
      const double g = Gamma(roundings + kMathRoundings, UnitRoundoff(wide));
      ExpectWithin(weights, weights64, Scaled(g, Abs(weights64)), "weights");

      Matrix d_logits = logits;
      Matrix d_logits64 = Convert(logits, DType::kF64);
      backend.Run(ops::RouteExpertsBackward{d_weights.view(), routing.experts, weights.view(),
                                            normalize, d_logits.view(), score, scale});
      reference.Run(ops::RouteExpertsBackward{Convert(d_weights, DType::kF64).view(),
                                              routing.experts, weights64.view(), normalize,
                                              d_logits64.view(), score, scale});
      ExpectWithin(d_logits, d_logits64,
                   Bound(d_logits,
                         [&](std::int64_t n, std::int64_t) {
                           double size = 0;
                           for (std::int64_t j = 0; j < k; ++j) {
                             size += std::abs(weights64(n, j) * d_weights(n, j));
                           }
                           return 4 * g * size;
                         }),
                   "d_logits");
    }
  }
}

TEST_P(OpTest, RouteExperts) {
  CompareRouters(backend(), reference(), wide(), RouterScore::kSoftmax, 1450);
}

// By hand: the definition chooses for the kernels, too.
TEST_P(OpTest, SigmoidsOfTheChosenAreDividedByTheirSum) {
  Matrix logits(wide(), 1, 3);  // whose sigmoids are 1/2, 3/4 and 7/8
  Matrix bias(wide(), 1, 3);    // with which the third is not chosen
  for (std::int64_t e = 0; e < 3; ++e) {
    logits.Set(0, e, std::log(std::array{1, 3, 7}[e]));
    bias.Set(0, e, e == 2 ? -1 : 0);
  }
  for (const bool normalize : {false, true}) {
    Routing routing(2, 3);
    Matrix weights(wide(), 1, 2);
    backend().Run(ops::RouteExperts{logits.view(), normalize, routing.view(), weights.view(),
                                    RouterScore::kSigmoid, bias.view(), 2});
    EXPECT_EQ(routing.experts, (std::vector<std::int32_t>{1, 0}));
    Matrix expected(DType::kF64, 1, 2);
    expected.Set(0, 0, 2 * 0.75 / (normalize ? 1.25 : 1));
    expected.Set(0, 1, 2 * 0.5 / (normalize ? 1.25 : 1));
    const double g = Gamma(10 + kMathRoundings, UnitRoundoff(wide()));
    ExpectWithin(weights, expected, Scaled(g, expected), "weights");
  }
}

TEST_P(OpTest, RouteExpertsBySigmoids) {
  CompareRouters(backend(), reference(), wide(), RouterScore::kSigmoid, 1460);
}

TEST_P(OpTest, GateRows) {
  std::uint64_t seed = 1470;
  for (const RowsShape& s : RowsShapes()) {
    for (const bool in_place : {false, true}) {
      Random random(++seed);
      Matrix dy = random.Normal(activation(), s.rows, s.cols, 1);
      Matrix x = random.Normal(activation(), s.rows, s.cols, 1);
      Matrix gate = random.Normal(activation(), s.rows, 1, 2);
      const Matrix dy64 = Convert(dy, DType::kF64);
      const Matrix x64 = Convert(x, DType::kF64);
      const Matrix gate64 = Convert(gate, DType::kF64);
      Matrix y64(DType::kF64, s.rows, s.cols);
      Matrix dx64(DType::kF64, s.rows, s.cols);
      Matrix d_gate64(DType::kF64, s.rows, 1);
      reference().Run(ops::GateRows{x64.view(), gate64.view(), y64.view()});
      reference().Run(ops::GateRowsBackward{dy64.view(), x64.view(), gate64.view(), d_gate64.view(),
                                            dx64.view()});

      Matrix d_gate(activation(), s.rows, 1);
      Matrix dx(activation(), s.rows, s.cols);
      Matrix y(activation(), s.rows, s.cols);
      const Matrix gate_before = gate;
      backend().Run(ops::GateRowsBackward{dy.view(), x.view(), gate.view(),
                                          in_place ? gate.view() : d_gate.view(),
                                          in_place ? dy.view() : dx.view()});
      backend().Run(ops::GateRows{x.view(), gate_before.view(), in_place ? x.view() : y.view()});
      const double g = Gamma(20 + kMathRoundings, UnitRoundoff(wide()));
      ExpectWithin(in_place ? x : y, y64, Scaled(g, Abs(y64)), "y");
      ExpectWithin(in_place ? dy : dx, dx64, Scaled(g, Abs(dx64)), "dx");
      ExpectWithin(in_place ? gate : d_gate, d_gate64,
                   Bound(d_gate64,
                         [&](std::int64_t n, std::int64_t) {
                           double size = 0;
                           for (std::int64_t c = 0; c < s.cols; ++c) {
                             size += std::abs(dy64(n, c) * x64(n, c));
                           }
                           return Gamma(s.cols + 20 + kMathRoundings, UnitRoundoff(wide())) * size;
                         }),
                   "d_gate");
    }
  }
}

TEST_P(OpTest, ScaleRowsAndRowDots) {
  std::uint64_t seed = 1480;
  for (const RowsShape& s : RowsShapes()) {
    for (const bool in_place : {false, true}) {
      Random random(++seed);
      Matrix x = random.Normal(activation(), s.rows, s.cols, 1);
      const Matrix other = random.Normal(activation(), s.rows, s.cols, 1);
      const Matrix scale = random.Normal(wide(), 1, s.rows, 1);
      const Matrix x64 = Convert(x, DType::kF64);
      const Matrix other64 = Convert(other, DType::kF64);
      Matrix dots(wide(), 1, s.rows);
      Matrix dots64(DType::kF64, 1, s.rows);
      backend().Run(ops::RowDots{x.view(), other.view(), dots.view()});
      reference().Run(ops::RowDots{x64.view(), other64.view(), dots64.view()});
      ExpectWithin(dots, dots64,
                   Bound(dots,
                         [&](std::int64_t, std::int64_t n) {
                           double size = 0;
                           for (std::int64_t c = 0; c < s.cols; ++c) {
                             size += std::abs(x64(n, c) * other64(n, c));
                           }
                           return Gamma(s.cols + 1, UnitRoundoff(wide())) * size;
                         }),
                   "dots");

      Matrix y(activation(), s.rows, s.cols);
      Matrix y64(DType::kF64, s.rows, s.cols);
      Matrix& out = in_place ? x : y;
      backend().Run(ops::ScaleRows{x.view(), scale.view(), out.view()});
      reference().Run(ops::ScaleRows{x64.view(), Convert(scale, DType::kF64).view(), y64.view()});
      ExpectWithin(out, y64, Scaled(UnitRoundoff(wide()), Abs(y64)), "y");
    }
  }
}

// The linears of experts have the bits of a Linear for each expert over its rows, of any rank, also
// where an expert has no rows.
TEST_P(OpTest, ExpertLinearsEqualLinears) {
  constexpr std::int64_t kIn = 72, kOut = 40, kGroup = 2, kSlots = 23;
  const std::vector<std::int32_t> begin = {0, 5, 5, 17, kSlots};
  const std::vector<std::int64_t> ranks = {4, 2, 0, 3};
  const auto count = std::ssize(ranks);
  Random random(1490);
  const Matrix x = random.Normal(activation(), kSlots, kIn, 1, precise());
  std::vector<TestWeight> weights;
  std::vector<Matrix> a, b, da, db;
  for (std::int64_t l = 0; l < kGroup * count; ++l) {
    const std::int64_t rank = ranks[l / kGroup];
    weights.emplace_back(WeightKind::kNf4, wide(), kOut, kIn, precise(), random);
    a.push_back(random.Normal(wide(), rank, rank == 0 ? 0 : kIn, 0.3, precise()));
    b.push_back(random.Normal(wide(), rank == 0 ? 0 : kOut, rank, 0.3, precise()));
    da.push_back(random.Normal(wide(), rank, rank == 0 ? 0 : kIn, 1));
    db.push_back(random.Normal(wide(), rank == 0 ? 0 : kOut, rank, 1));
  }
  std::vector<LinearView> linears;
  for (std::int64_t l = 0; l < kGroup * count; ++l) {
    LinearView linear;
    linear.weight = weights[l].view();
    linear.lora.a = std::as_const(a[l]).view();
    linear.lora.b = std::as_const(b[l]).view();
    linear.lora.scale = 0.5f;
    linears.push_back(linear);
  }
  std::vector<Matrix> y, u, dy;
  for (std::int64_t i = 0; i < kGroup; ++i) {
    y.emplace_back(activation(), kSlots, kOut);
    u.push_back(random.Normal(wide(), kSlots, 4, 1, precise()));
    dy.push_back(random.Normal(activation(), kSlots, kOut, 1, precise()));
  }
  Matrix dx(activation(), kSlots, kIn);
  std::vector<Matrix> y2 = y, u2 = u, da2 = da, db2 = db;
  Matrix dx2 = dx;
  backend().Reserve(
      {.rows = kSlots, .features = kGroup * kIn, .lora_rank = 8, .gradient_rows = kSlots});

  std::vector<LinearOutput> outputs;
  std::vector<LinearGradient> gradients(kGroup * count);
  for (std::int64_t l = 0; l < kGroup * count; ++l) {
    if (l < kGroup) {
      outputs.push_back({y[l].view(), u[l].view()});
      gradients[l] = {std::as_const(dy[l]).view(), std::as_const(u[l]).view(), {}, {}};
    }
    gradients[l].da_acc = da[l].view();
    gradients[l].db_acc = db[l].view();
  }
  backend().Run(ops::ExpertLinear{linears, begin, x.view(), outputs});
  backend().Run(ops::ExpertLinearBackward{linears, begin, x.view(), gradients, dx.view()});

  for (std::int64_t e = 0; e < count; ++e) {
    const std::int64_t rows = begin[e + 1] - begin[e];
    if (rows == 0) continue;
    const auto part = [&](Matrix& m) { return Rows(m.view(), begin[e], rows); };
    std::vector<LinearOutput> of_expert;
    std::vector<LinearGradient> gradients_of_expert;
    for (std::int64_t i = 0; i < kGroup; ++i) {
      MatrixView low_rank = ranks[e] == 0 ? MatrixView() : part(u2[i]);
      if (ranks[e] > 0) low_rank.cols = ranks[e];
      of_expert.push_back({part(y2[i]), low_rank});
      gradients_of_expert.push_back(
          {part(dy[i]), low_rank, da2[e * kGroup + i].view(), db2[e * kGroup + i].view()});
    }
    const std::span<const LinearView> own = std::span(linears).subspan(e * kGroup, kGroup);
    const ConstMatrixView x_part = Rows(x.view(), begin[e], rows);
    backend().Run(ops::Linear{own, x_part, of_expert});
    backend().Run(ops::LinearBackward{own, x_part, gradients_of_expert, part(dx2)});
  }
  for (std::int64_t i = 0; i < kGroup; ++i) {
    ExpectEqual(y[i], y2[i], "y");
    ExpectEqual(u[i], u2[i], "u");
  }
  for (std::int64_t l = 0; l < kGroup * count; ++l) {
    ExpectEqual(da[l], da2[l], "da");
    ExpectEqual(db[l], db2[l], "db");
  }
  ExpectEqual(dx, dx2, "dx");
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_EXPERTS_H_
