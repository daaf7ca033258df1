// CrossEntropy and KlDivergence. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_LOSS_H_
#define QLORA_TESTS_BACKEND_OP_CASES_LOSS_H_

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_rows.h"
#include "backend/test_util.h"

namespace qlora::testing_util {

TEST_P(OpTest, CrossEntropy) {
  std::uint64_t seed = 1500;
  for (const RowsShape& s : RowsShapes()) {
    for (const auto& [softcap, smoothing] : {std::pair(0.0f, 0.0f), std::pair(10.0f, 0.0f),
                                             std::pair(0.0f, 0.1f), std::pair(10.0f, 0.3f)}) {
      for (const double gradient_scale : {0.0, 1.0, 0.0125}) {
        for (const double deviation : {1.0, 50.0}) {
          // Many rows are there for their cut into tasks, with gradients and without.
          if (s.rows > 20 && (gradient_scale == 0.0125 || deviation == 50)) continue;
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
          Matrix mean(wide(), 1, s.rows);
          Matrix mean64 = Convert(mean, DType::kF64);
          Matrix entropy(wide(), 1, s.rows);
          Matrix entropy64 = Convert(entropy, DType::kF64);
          Matrix capped64 = Convert(logits, DType::kF64);
          Matrix loss64 = Convert(loss, DType::kF64);
          reference().Run(ops::CrossEntropy{targets,
                                            softcap,
                                            {},
                                            capped64.view(),
                                            loss64.view(),
                                            hit64.view(),
                                            0,
                                            mean64.view(),
                                            entropy64.view()});
          const Matrix logprob64 = loss64;
          Matrix out64 = Convert(logits, DType::kF64);
          reference().Run(ops::CrossEntropy{
              targets, softcap, row_scale64.view(), out64.view(), loss64.view(), {}, smoothing});
          backend().Reserve({.rows = s.rows, .vocab_rows = s.rows, .vocab = s.cols});
          backend().Run(ops::CrossEntropy{targets, softcap, row_scale.view(), logits.view(),
                                          loss.view(), hit.view(), smoothing, mean.view(),
                                          entropy.view()});
          // A cap can round different logits to the same value.
          if (softcap == 0) ExpectEqual(hit, Convert(hit64, wide()), "hit");

          // A capped logit c has an error of e_c; c - max has e_c more and is at most 2 max|c|.
          const double unit = kMathRoundings * UnitRoundoff(wide());
          std::vector<double> error_of_row;
          std::vector<double> mean_error;
          std::vector<double> entropy_error;
          for (std::int64_t n = 0; n < s.rows; ++n) {
            double size = 0;
            for (std::int64_t v = 0; v < s.cols; ++v)
              size = std::max(size, std::abs(capped64(n, v)));
            // The largest logit and the mean of the distances from it.
            mean_error.push_back(2 * unit * static_cast<double>(softcap) +
                                 Gamma(s.cols + 3, UnitRoundoff(wide())) * 3 * size);
            // d entropy / d logit = -p (log p + entropy), whose sizes sum to at most 2 log V. Each
            // logit has its error, that of its distance from the largest, and that of its exp.
            const double log_v = std::log(static_cast<double>(s.cols));
            entropy_error.push_back(
                2 * log_v * (4 * unit * static_cast<double>(softcap) + unit * (1 + 2 * size)) +
                Gamma(s.cols + 3, UnitRoundoff(wide())) * (1 + 4 * size) + unit * log_v);
            // The mean of all logits, for smoothing, is a sum of V terms of at most 2 max|c|.
            error_of_row.push_back(4 * unit * (1 + size) + Gamma(s.cols, UnitRoundoff(wide())) *
                                                               (1 + smoothing * 2 * size));
          }
          ExpectWithin(loss, loss64,
                       Bound(loss, [&](std::int64_t, std::int64_t n) { return error_of_row[n]; }),
                       "logprob");
          ExpectWithin(mean, mean64,
                       Bound(mean, [&](std::int64_t, std::int64_t n) { return mean_error[n]; }),
                       "mean");
          ExpectWithin(
              entropy, entropy64,
              Bound(entropy, [&](std::int64_t, std::int64_t n) { return entropy_error[n]; }),
              "entropy");
          ExpectWithin(
              logits, out64,
              Bound(out64,
                    [&, softcap = softcap, smoothing = smoothing](std::int64_t n, std::int64_t v) {
                      const double cap_error =
                          softcap == 0 ? 0 : 2 * unit * static_cast<double>(softcap);
                      if (gradient_scale == 0) return cap_error;
                      const double p =
                          std::exp(capped64(n, v) - capped64(n, targets[n]) + logprob64(0, n));
                      const double label =
                          smoothing / static_cast<double>(s.cols) + (targets[n] == v ? 1 : 0);
                      return row_scale64(0, n) *
                             (p * 2 * error_of_row[n] +
                              (p + label) * (unit + (softcap == 0 ? 0 : 4 * unit)));
                    }),
              "logits");
        }
      }
    }
  }
}

TEST_P(OpTest, KlDivergence) {
  std::uint64_t seed = 1900;
  const double u = UnitRoundoff(wide());
  const double unit = kMathRoundings * u;
  for (const RowsShape& s : RowsShapes()) {
    for (const float softcap : {0.0f, 10.0f}) {
      for (const double deviation : {1.0, 50.0}) {
        Random random(++seed);
        Matrix logits = random.Normal(wide(), s.rows, s.cols, deviation);
        Matrix base = random.Normal(wide(), s.rows, s.cols, deviation);
        // A row of equal logits, and a logit that no softmax counts.
        for (std::int64_t v = 0; v < s.cols; ++v) base.Set(0, v, logits.at(0, v));
        if (softcap == 0 && s.rows > 1 && s.cols > 1) {
          logits.Set(s.rows - 1, 0, -HUGE_VAL);
          base.Set(s.rows - 1, 0, -HUGE_VAL);
        }
        const float scale = 0.0125f;
        Matrix kl(wide(), 1, s.rows);
        Matrix capped64 = Convert(logits, DType::kF64);
        Matrix base_capped64 = Convert(base, DType::kF64);
        for (Matrix* capped : {&capped64, &base_capped64}) {
          Matrix unused(DType::kF64, 1, s.rows);
          const std::vector<std::int32_t> targets(static_cast<std::size_t>(s.rows), 0);
          reference().Run(ops::CrossEntropy{targets, softcap, {}, capped->view(), unused.view()});
        }
        Matrix logits64 = Convert(logits, DType::kF64);
        Matrix base64 = Convert(base, DType::kF64);
        Matrix kl64(DType::kF64, 1, s.rows);
        reference().Run(
            ops::KlDivergence{softcap, scale, base64.view(), logits64.view(), kl64.view()});
        backend().Reserve({.rows = s.rows, .vocab_rows = s.rows, .vocab = s.cols});
        backend().Run(ops::KlDivergence{softcap, scale, base.view(), logits.view(), kl.view()});
        EXPECT_EQ(kl(0, 0), 0);
        for (std::int64_t v = 0; v < s.cols; ++v) EXPECT_EQ(logits(0, v), 0);

        // As for CrossEntropy: `error` of an exponential relative to itself, with its sum. The
        // difference of two logits has it twice, and so has the logarithm of each sum.
        std::vector<double> error;
        std::vector<double> kl_error;
        std::vector<double> lse;
        for (std::int64_t n = 0; n < s.rows; ++n) {
          double size = 0;
          double moved = 0;  // the mean of |b - c| under q
          for (std::int64_t v = 0; v < s.cols; ++v) {
            if (std::isinf(capped64(n, v))) continue;
            size = std::max({size, std::abs(capped64(n, v)), std::abs(base_capped64(n, v))});
            moved += base64(n, v) * std::abs(base_capped64(n, v) - capped64(n, v));
          }
          double sum = 0;
          for (std::int64_t v = 0; v < s.cols; ++v) sum += std::exp(capped64(n, v) - size);
          lse.push_back(size + std::log(sum));
          error.push_back(4 * unit * (1 + size) + Gamma(s.cols, u));
          // Each term is taken from the largest logits, and has the difference of those besides.
          const double terms = moved + 2 * size;
          kl_error.push_back(error[n] * (3 * terms + 4) +
                             2 * unit * std::log(static_cast<double>(s.cols)));
        }
        ExpectWithin(kl, kl64, Bound(kl, [&](std::int64_t, std::int64_t n) { return kl_error[n]; }),
                     "kl");
        ExpectWithin(
            base, base64,
            Bound(base64, [&](std::int64_t n,
                              std::int64_t v) { return base64(n, v) * (2 * error[n] + unit); }),
            "base");
        ExpectWithin(logits, logits64,
                     Bound(logits64,
                           [&](std::int64_t n, std::int64_t v) {
                             const double p = std::exp(capped64(n, v) - lse[n]);
                             return scale * (p + base64(n, v)) *
                                    (2 * error[n] + 2 * unit + (softcap == 0 ? 0 : 4 * unit));
                           }),
                     "logits");
      }
    }
  }
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_LOSS_H_
