// Embedding, norm, gated activation, loss and row moves. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_ROWS_H_
#define QLORA_TESTS_BACKEND_OP_CASES_ROWS_H_

#include <algorithm>
#include <numeric>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_util.h"
#include "base/matrix.h"

namespace qlora::testing_util {

// Roundings of one exp, log or tanh.
inline constexpr int kMathRoundings = 8;

struct RowsShape {
  std::int64_t rows, cols;
};
inline std::vector<RowsShape> RowsShapes() {
  return {{1, 1}, {1, 64}, {3, 7}, {5, 33}, {17, 128}, {2, 1000}, {64, 48}};
}

// A matrix of the given shape whose elements are fn(r, c).
inline Matrix Bound(const Matrix& like,
                    const std::function<double(std::int64_t, std::int64_t)>& fn) {
  Matrix bound(DType::kF64, like.rows(), like.cols());
  for (std::int64_t r = 0; r < like.rows(); ++r) {
    for (std::int64_t c = 0; c < like.cols(); ++c) bound.Set(r, c, fn(r, c));
  }
  return bound;
}

inline std::vector<std::int32_t> RandomIndices(Random& random, std::int64_t size,
                                               std::int64_t count) {
  std::vector<std::int32_t> indices;
  for (std::int64_t i = 0; i < size; ++i) {
    indices.push_back(static_cast<std::int32_t>(random.Below(count)));
  }
  return indices;
}

TEST_P(OpTest, Embed) {
  std::uint64_t seed = 1000;
  for (const RowsShape& s : RowsShapes()) {
    for (const DType table_type : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const DType y_type : {activation(), wide()}) {
        Random random(++seed);
        const Matrix table = random.Normal(table_type, 29, s.cols, 1);
        const std::vector<std::int32_t> ids = RandomIndices(random, s.rows, 29);
        Matrix y(y_type, s.rows, s.cols);
        Matrix expected(DType::kF64, s.rows, s.cols);
        backend().Reserve({.rows = s.rows, .features = s.cols});
        backend().Run(ops::Embed{ids, table.view(), 5.5f, y.view()});
        reference().Run(ops::Embed{ids, table.view(), 5.5f, expected.view()});
        ExpectWithin(y, expected, Scaled(UnitRoundoff(wide()), Abs(expected)), "y");
      }
    }
  }
}

TEST_P(OpTest, RmsNorm) {
  std::uint64_t seed = 1100;
  for (const RowsShape& s : RowsShapes()) {
    for (const double deviation : {1e-4, 1.0, 300.0}) {
      for (const DType x_type : {activation(), wide()}) {
        Random random(++seed);
        const DType y_type = x_type == wide() ? activation() : wide();
        const Matrix x = random.Normal(x_type, s.rows, s.cols, deviation);
        const Matrix w = random.Normal(wide(), 1, s.cols, 1);
        Matrix y(y_type, s.rows, s.cols);
        Matrix rstd(wide(), 1, s.rows);
        Matrix y64 = Convert(y, DType::kF64);
        Matrix rstd64 = Convert(rstd, DType::kF64);
        backend().Reserve({.rows = s.rows, .features = s.cols});
        backend().Run(ops::RmsNorm{x.view(), w.view(), 1e-6f, y.view(), rstd.view()});
        reference().Run(ops::RmsNorm{Convert(x, DType::kF64).view(), Convert(w, DType::kF64).view(),
                                     1e-6f, y64.view(), rstd64.view()});
        const double g = Gamma(s.cols + 8, UnitRoundoff(wide()));
        ExpectWithin(rstd, rstd64, Scaled(g, Abs(rstd64)), "rstd");
        ExpectWithin(y, y64, Scaled(g, Abs(y64)), "y");
      }
    }
  }
}

TEST_P(OpTest, RmsNormBackward) {
  std::uint64_t seed = 1200;
  for (const RowsShape& s : RowsShapes()) {
    for (const Store store : {Store::kSet, Store::kAdd}) {
      for (const bool in_place : {false, true}) {
        for (const DType type : {activation(), wide()}) {
          Random random(++seed);
          const Matrix x = random.Normal(wide(), s.rows, s.cols, 2);
          const Matrix w = random.Normal(wide(), 1, s.cols, 1);
          Matrix dy = random.Normal(type, s.rows, s.cols, 1);
          Matrix dx = store == Store::kAdd ? random.Normal(type, s.rows, s.cols, 1) : Poisoned(dy);
          Matrix rstd(wide(), 1, s.rows);
          Matrix unused(DType::kF64, s.rows, s.cols);
          Matrix rstd64(DType::kF64, 1, s.rows);
          const Matrix x64 = Convert(x, DType::kF64);
          const Matrix w64 = Convert(w, DType::kF64);
          reference().Run(
              ops::RmsNorm{x64.view(), w64.view(), 1e-6f, unused.view(), rstd64.view()});
          rstd = Convert(rstd64, wide());
          rstd64 = Convert(rstd, DType::kF64);

          const Matrix dy64 = Convert(dy, DType::kF64);
          const Matrix& before = in_place ? dy : dx;
          Matrix dx64 = Convert(before, DType::kF64);
          const Matrix bound = Bound(dy64, [&](std::int64_t n, std::int64_t d) {
            double mean = 0;
            for (std::int64_t i = 0; i < s.cols; ++i) {
              mean += std::abs(w64(0, i) * dy64(n, i) * x64(n, i)) / static_cast<double>(s.cols);
            }
            const double r = rstd64(0, n);
            const double old = store == Store::kAdd ? std::abs(before(n, d)) : 0;
            return Gamma(s.cols + 10, UnitRoundoff(wide())) *
                   (old + r * std::abs(w64(0, d) * dy64(n, d)) +
                    std::abs(x64(n, d)) * r * r * r * mean);
          });
          Matrix& out = in_place ? dy : dx;
          backend().Reserve({.rows = s.rows, .features = s.cols});
          backend().Run(
              ops::RmsNormBackward{dy.view(), x.view(), w.view(), rstd.view(), out.view(), store});
          reference().Run(ops::RmsNormBackward{dy64.view(), x64.view(), w64.view(), rstd64.view(),
                                               dx64.view(), store});
          ExpectWithin(out, dx64, bound, "dx");
        }
      }
    }
  }
}

// Values of both signs, from so small that the activation is linear to so large that it saturates.
inline Matrix GateValues(Random& random, DType type, const RowsShape& s) {
  Matrix gate = random.Normal(type, s.rows, s.cols, 3);
  const std::vector<double> special = {0.0, -0.0, 1e-6, -1e-6, 12.5, -12.5, 95.0, -95.0};
  for (std::size_t i = 0; i < special.size() && static_cast<std::int64_t>(i) < s.cols; ++i) {
    gate.Set(s.rows - 1, static_cast<std::int64_t>(i), special[i]);
  }
  return gate;
}

TEST_P(OpTest, GatedActivation) {
  std::uint64_t seed = 1300;
  for (const RowsShape& s : RowsShapes()) {
    for (const Activation act : {Activation::kSilu, Activation::kGeluTanh}) {
      for (const int aliased : {0, 1, 2}) {  // y apart, y = gate, y = up
        Random random(++seed);
        Matrix gate = GateValues(random, activation(), s);
        Matrix up = random.Normal(activation(), s.rows, s.cols, 1);
        Matrix y(activation(), s.rows, s.cols);
        const Matrix gate64 = Convert(gate, DType::kF64);
        const Matrix up64 = Convert(up, DType::kF64);
        Matrix y64(DType::kF64, s.rows, s.cols);
        Matrix& out = aliased == 0 ? y : aliased == 1 ? gate : up;
        backend().Reserve({.rows = s.rows, .features = s.cols});
        backend().Run(ops::GatedActivation{act, gate.view(), up.view(), out.view()});
        reference().Run(ops::GatedActivation{act, gate64.view(), up64.view(), y64.view()});
        const double g = 2 * kMathRoundings * UnitRoundoff(wide());
        ExpectWithin(
            out, y64,
            Bound(y64, [&](std::int64_t r,
                           std::int64_t c) { return g * std::abs(gate64(r, c) * up64(r, c)); }),
            "y");
      }
    }
  }
}

TEST_P(OpTest, GatedActivationBackward) {
  std::uint64_t seed = 1400;
  for (const RowsShape& s : RowsShapes()) {
    for (const Activation act : {Activation::kSilu, Activation::kGeluTanh}) {
      for (const int aliased : {0, 1, 2}) {  // apart; d_gate = gate, d_up = up; d_up = dy
        Random random(++seed);
        Matrix gate = GateValues(random, activation(), s);
        Matrix up = random.Normal(activation(), s.rows, s.cols, 1);
        Matrix dy = random.Normal(activation(), s.rows, s.cols, 1);
        Matrix d_gate(activation(), s.rows, s.cols);
        Matrix d_up(activation(), s.rows, s.cols);
        const Matrix gate64 = Convert(gate, DType::kF64);
        const Matrix up64 = Convert(up, DType::kF64);
        const Matrix dy64 = Convert(dy, DType::kF64);
        Matrix d_gate64(DType::kF64, s.rows, s.cols);
        Matrix d_up64(DType::kF64, s.rows, s.cols);
        Matrix& gate_out = aliased == 1 ? gate : d_gate;
        Matrix& up_out = aliased == 0 ? d_up : aliased == 1 ? up : dy;
        backend().Reserve({.rows = s.rows, .features = s.cols});
        backend().Run(ops::GatedActivationBackward{act, dy.view(), gate.view(), up.view(),
                                                   gate_out.view(), up_out.view()});
        reference().Run(ops::GatedActivationBackward{act, dy64.view(), gate64.view(), up64.view(),
                                                     d_gate64.view(), d_up64.view()});
        const double g = 2 * kMathRoundings * UnitRoundoff(wide());
        // The argument z of tanh in gelu' has the relative error of x^3, and (1 - t^2) z <= 1/2;
        // z' multiplies the error of 1 - t^2.
        ExpectWithin(gate_out, d_gate64,
                     Bound(dy64,
                           [&](std::int64_t r, std::int64_t c) {
                             const double x = std::min(std::abs(gate64(r, c)), 16.0);
                             const double slope =
                                 act == Activation::kSilu ? 1 + x : 1 + x * (1 + 0.134145 * x * x);
                             return g * slope * std::abs(dy64(r, c) * up64(r, c));
                           }),
                     "d_gate");
        ExpectWithin(
            up_out, d_up64,
            Bound(dy64, [&](std::int64_t r,
                            std::int64_t c) { return g * std::abs(dy64(r, c) * gate64(r, c)); }),
            "d_up");
      }
    }
  }
}

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

TEST_P(OpTest, RouteExperts) {
  std::uint64_t seed = 1450;
  for (const RowsShape& s : RowsShapes()) {
    for (const bool normalize : {false, true}) {
      Random random(++seed);
      const std::int64_t k = std::min<std::int64_t>(s.cols, 1 + random.Below(4));
      const Matrix logits = random.Normal(wide(), s.rows, s.cols, 3);
      const Matrix d_weights = random.Normal(wide(), s.rows, k, 1);
      Routing routing(s.rows * k, s.cols);
      Routing routing64(s.rows * k, s.cols);
      Matrix weights(wide(), s.rows, k);
      Matrix weights64(DType::kF64, s.rows, k);
      backend().Run(ops::RouteExperts{logits.view(), normalize, routing.view(), weights.view()});
      reference().Run(ops::RouteExperts{Convert(logits, DType::kF64).view(), normalize,
                                        routing64.view(), weights64.view()});
      EXPECT_EQ(routing.experts, routing64.experts);
      routing.ExpectConsistent(k);
      // An error of a logit's size in the exponent, and of the sum.
      const double g = Gamma(s.cols + 40 + kMathRoundings, UnitRoundoff(wide()));
      ExpectWithin(weights, weights64, Scaled(g, Abs(weights64)), "weights");

      Matrix d_logits = logits;
      Matrix d_logits64 = Convert(logits, DType::kF64);
      backend().Run(ops::RouteExpertsBackward{d_weights.view(), routing.experts, weights.view(),
                                              normalize, d_logits.view()});
      reference().Run(ops::RouteExpertsBackward{Convert(d_weights, DType::kF64).view(),
                                                routing.experts, weights64.view(), normalize,
                                                d_logits64.view()});
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

TEST_P(OpTest, CrossEntropy) {
  std::uint64_t seed = 1500;
  for (const RowsShape& s : RowsShapes()) {
    for (const float softcap : {0.0f, 10.0f}) {
      for (const double gradient_scale : {0.0, 1.0, 0.0125}) {
        for (const double deviation : {1.0, 50.0}) {
          Random random(++seed);
          Matrix logits = random.Normal(wide(), s.rows, s.cols, deviation);
          const std::vector<std::int32_t> targets = RandomIndices(random, s.rows, s.cols);
          Matrix row_scale(wide(), 1, gradient_scale == 0 ? 0 : s.rows);
          for (std::int64_t n = 0; n < row_scale.cols(); ++n) {
            row_scale.Set(0, n, gradient_scale * static_cast<double>(n % 3 + 1));
          }
          const Matrix row_scale64 = Convert(row_scale, DType::kF64);
          Matrix loss(wide(), 1, s.rows);
          Matrix hit(wide(), 1, s.rows);
          Matrix hit64 = Convert(loss, DType::kF64);
          Matrix capped64 = Convert(logits, DType::kF64);
          Matrix loss64 = Convert(loss, DType::kF64);
          reference().Run(ops::CrossEntropy{
              targets, softcap, {}, capped64.view(), loss64.view(), hit64.view()});
          Matrix out64 = Convert(logits, DType::kF64);
          reference().Run(
              ops::CrossEntropy{targets, softcap, row_scale64.view(), out64.view(), loss64.view()});
          backend().Reserve({.rows = s.rows, .vocab_rows = s.rows, .vocab = s.cols});
          backend().Run(ops::CrossEntropy{targets, softcap, row_scale.view(), logits.view(),
                                          loss.view(), hit.view()});
          // A cap can round different logits to the same value.
          if (softcap == 0) ExpectEqual(hit, Convert(hit64, wide()), "hit");

          // A capped logit c has an error of e_c; c - max has e_c more and is at most 2 max|c|.
          const double unit = kMathRoundings * UnitRoundoff(wide());
          const auto error_of_row = [&](std::int64_t n) {
            double size = 0;
            for (std::int64_t v = 0; v < s.cols; ++v)
              size = std::max(size, std::abs(capped64(n, v)));
            return 4 * unit * (1 + size) + Gamma(s.cols, UnitRoundoff(wide()));
          };
          ExpectWithin(loss, loss64,
                       Bound(loss, [&](std::int64_t, std::int64_t n) { return error_of_row(n); }),
                       "logprob");
          ExpectWithin(logits, out64,
                       Bound(out64,
                             [&](std::int64_t n, std::int64_t v) {
                               const double cap_error =
                                   softcap == 0 ? 0 : 2 * unit * static_cast<double>(softcap);
                               if (gradient_scale == 0) return cap_error;
                               const double p = std::exp(capped64(n, v) - capped64(n, targets[n]) +
                                                         loss64(0, n));
                               const double onehot = targets[n] == v ? 1 : 0;
                               return row_scale64(0, n) *
                                      (p * 2 * error_of_row(n) +
                                       (p + onehot) * (unit + (softcap == 0 ? 0 : 4 * unit)));
                             }),
                       "logits");
        }
      }
    }
  }
}

TEST_P(OpTest, AddGatherScatter) {
  std::uint64_t seed = 1600;
  for (const RowsShape& s : RowsShapes()) {
    for (const DType x_type : {activation(), wide()}) {
      for (const DType y_type : {activation(), wide()}) {
        Random random(++seed);
        const Matrix x = random.Normal(x_type, s.rows, s.cols, 1);
        const Matrix x64 = Convert(x, DType::kF64);
        const double unit = UnitRoundoff(wide());
        backend().Reserve({.rows = 2 * s.rows, .features = s.cols});

        Matrix sum = random.Normal(y_type, s.rows, s.cols, 1);
        Matrix sum64 = Convert(sum, DType::kF64);
        backend().Run(ops::Add{x.view(), sum.view()});
        reference().Run(ops::Add{x64.view(), sum64.view()});
        ExpectWithin(sum, sum64, Scaled(unit, Abs(sum64)), "Add");

        const std::vector<std::int32_t> picks = RandomIndices(random, 2 * s.rows, s.rows);
        Matrix gathered(y_type, 2 * s.rows, s.cols);
        Matrix gathered64(DType::kF64, 2 * s.rows, s.cols);
        backend().Run(ops::GatherRows{x.view(), picks, gathered.view()});
        reference().Run(ops::GatherRows{x64.view(), picks, gathered64.view()});
        ExpectEqual(gathered, Convert(gathered64, y_type), "GatherRows");

        std::vector<std::int32_t> rows;  // every other row, backwards
        for (std::int64_t n = 0; n < s.rows; ++n) {
          rows.push_back(static_cast<std::int32_t>(2 * (s.rows - 1 - n)));
        }
        // Equal rows are added in their order.
        if (s.rows > 3 && y_type == wide()) rows[2] = rows[0];
        Matrix spread = random.Normal(y_type, 2 * s.rows, s.cols, 1);
        Matrix spread64 = Convert(spread, DType::kF64);
        backend().Run(ops::ScatterAddRows{x.view(), rows, spread.view()});
        reference().Run(ops::ScatterAddRows{x64.view(), rows, spread64.view()});
        ExpectWithin(spread, spread64,
                     Scaled(4 * unit, Filled(DType::kF64, 2 * s.rows, s.cols, 16)),
                     "ScatterAddRows");
      }
    }
  }
}

TEST_P(OpTest, EmbedBackwardAddsInTheOrderOfRows) {
  std::uint64_t seed = 1620;
  for (const RowsShape& s : RowsShapes()) {
    Random random(++seed);
    const Matrix dy = random.Normal(wide(), s.rows, s.cols, 1);
    const std::vector<std::int32_t> ids = RandomIndices(random, s.rows, 5);
    Matrix table = random.Normal(wide(), 5, s.cols, 1);
    Matrix table64 = Convert(table, DType::kF64);
    backend().Run(ops::EmbedBackward{dy.view(), ids, 3.5f, table.view()});
    reference().Run(ops::EmbedBackward{Convert(dy, DType::kF64).view(), ids, 3.5f, table64.view()});
    const double bound = 4 * static_cast<double>(s.rows) * UnitRoundoff(wide());
    ExpectWithin(table, table64, Scaled(bound, Filled(DType::kF64, 5, s.cols, 16)), "d_table");
  }
}

TEST_P(OpTest, CopyAndZero) {
  Random random(1630);
  const Matrix x = random.Normal(activation(), 5, 33, 1);
  Matrix y = random.Normal(activation(), 5, 33, 1);
  backend().Run(ops::Copy{x.view(), y.view()});
  ExpectEqual(y, x, "Copy");
  // Columns of a larger matrix: the others keep their values.
  backend().Run(ops::Zero{Columns(y.view(), 3, 7)});
  for (std::int64_t r = 0; r < 5; ++r) {
    for (std::int64_t c = 0; c < 33; ++c) {
      EXPECT_EQ(y(r, c), c >= 3 && c < 10 ? 0 : x(r, c));
    }
  }
}

TEST_P(OpTest, SumsInFloat64) {
  std::uint64_t seed = 1640;
  for (const RowsShape& s : RowsShapes()) {
    Random random(++seed);
    const Matrix values = random.Normal(wide(), 2, s.cols, 1);
    const Matrix x = random.Normal(activation(), s.rows, s.cols, 1);
    Matrix sums = Filled(DType::kF64, 1, 2, 0.5);
    Matrix squares = Filled(DType::kF64, 1, s.cols, 0.25);
    Matrix sums64 = sums;
    Matrix squares64 = squares;
    backend().Run(ops::SumRows{values.view(), sums.view()});
    backend().Run(ops::ColumnSquares{x.view(), squares.view()});
    reference().Run(ops::SumRows{Convert(values, DType::kF64).view(), sums64.view()});
    reference().Run(ops::ColumnSquares{Convert(x, DType::kF64).view(), squares64.view()});
    ExpectEqual(sums, sums64, "SumRows");
    ExpectEqual(squares, squares64, "ColumnSquares");
  }
}

TEST_P(OpTest, ColumnsAndNoise) {
  std::uint64_t seed = 1650;
  for (const RowsShape& s : RowsShapes()) {
    for (const DType x_type : {activation(), wide()}) {
      for (const Store store : {Store::kSet, Store::kAdd}) {
        Random random(++seed);
        const Matrix x = random.Normal(x_type, s.rows, s.cols, 1);
        const Matrix dy = random.Normal(activation(), s.rows, s.cols, 1);
        const Matrix gain = random.Normal(wide(), 1, s.cols, 1);
        const Matrix bias = store == Store::kAdd ? random.Normal(wide(), 1, s.cols, 1) : Matrix();
        const Matrix x64 = Convert(x, DType::kF64);
        const Matrix dy64 = Convert(dy, DType::kF64);
        backend().Reserve({.rows = s.rows, .features = s.cols});

        Matrix y = random.Normal(activation(), s.rows, s.cols, 1);
        Matrix y64 = Convert(y, DType::kF64);
        const Matrix before = Abs(y64);
        backend().Run(ops::ScaleColumns{x.view(), gain.view(), bias.view(), y.view(), store});
        reference().Run(ops::ScaleColumns{x64.view(), Convert(gain, DType::kF64).view(),
                                          Convert(bias, DType::kF64).view(), y64.view(), store});
        ExpectWithin(y, y64,
                     Bound(y64,
                           [&](std::int64_t n, std::int64_t o) {
                             const double added =
                                 store == Store::kAdd ? std::abs(bias(0, o)) + before(n, o) : 0;
                             return 3 * UnitRoundoff(wide()) *
                                    (std::abs(x64(n, o) * gain(0, o)) + added);
                           }),
                     "ScaleColumns");

        Matrix dots(wide(), 1, s.cols);
        Matrix dots64(DType::kF64, 1, s.cols);
        Matrix size64(DType::kF64, 1, s.cols);
        backend().Run(ops::ColumnDots{x.view(), dy.view(), dots.view()});
        reference().Run(ops::ColumnDots{x64.view(), dy64.view(), dots64.view()});
        reference().Run(ops::ColumnDots{Abs(x64).view(), Abs(dy64).view(), size64.view()});
        ExpectWithin(dots, dots64, Scaled(Gamma(s.rows + 1, UnitRoundoff(wide())), size64),
                     "ColumnDots");

        const Matrix magnitude = random.Normal(wide(), 1, s.rows, 1);
        Matrix noisy = random.Normal(wide(), s.rows, s.cols, 1);
        Matrix noisy64 = Convert(noisy, DType::kF64);
        const RandomKey key = MakeKey(seed, RandomPlace::kNeftune);
        backend().Run(ops::AddNoise{key, magnitude.view(), noisy.view()});
        reference().Run(ops::AddNoise{key, Convert(magnitude, DType::kF64).view(), noisy64.view()});
        ExpectWithin(noisy, noisy64,
                     Bound(noisy64,
                           [&](std::int64_t n, std::int64_t d) {
                             return 3 * UnitRoundoff(wide()) *
                                    (std::abs(noisy64(n, d)) + 2 * std::abs(magnitude(0, n)));
                           }),
                     "AddNoise");
      }
    }
  }
}

TEST_P(OpTest, SumOfSquares) {
  Random random(1800);
  for (const std::int64_t size : {1, 7, 64, 4099, 20000}) {
    const Matrix x = random.Normal(wide(), 1, size, 1);
    double expected = 0;
    for (std::int64_t i = 0; i < size; ++i) expected += x(0, i) * x(0, i);
    const double sum = ReadSumOfSquares(backend(), x.view());
    EXPECT_NEAR(sum, expected, 2 * Gamma(size, 0x1p-53) * expected);
    EXPECT_EQ(sum, ReadSumOfSquares(backend(), x.view()));
  }
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_ROWS_H_
