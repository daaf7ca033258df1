// Routing, scaling and dot products of the rows of experts. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_EXPERTS_H_
#define QLORA_TESTS_BACKEND_OP_CASES_EXPERTS_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_rows.h"
#include "backend/test_util.h"

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

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_EXPERTS_H_
