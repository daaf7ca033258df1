// AttentionSinks and the clamped activation: ops of backends that run gpt-oss, as op_cases.h has
// those of all backends.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_SINKS_H_
#define QLORA_TESTS_BACKEND_OP_CASES_SINKS_H_

#include <algorithm>
#include <cmath>

#include "backend/op_cases_recurrent.h"

namespace qlora::testing_util {

// Sinks far below and far above the sums of their rows, too.
TEST_P(RecurrentTest, AttentionSinks) {
  std::uint64_t seed = 3000;
  for (const RowsShape& s : RowsShapes()) {
    for (const std::int64_t K : {1, 7, 64}) {
      Random random(++seed);
      const std::int64_t heads = std::max<std::int64_t>(1, s.cols / 64);
      Matrix sinks = random.Normal(wide(), 1, heads, 20);
      Matrix lse = random.Normal(wide(), s.rows, heads, 20);
      Matrix o = random.Normal(activation(), s.rows, heads * K, 1);
      Matrix lse64 = Convert(lse, DType::kF64);
      Matrix o64 = Convert(o, DType::kF64);
      const Matrix sinks64 = Convert(sinks, DType::kF64);
      const Matrix before = lse64;
      backend().Run(ops::AttentionSinks{sinks.view(), lse.view(), o.view()});
      reference().Run(ops::AttentionSinks{sinks64.view(), lse64.view(), o64.view()});
      // The difference of lse and sink is rounded once.
      const auto error = [&](std::int64_t n, std::int64_t h) {
        const double sizes = std::abs(before(n, h)) + std::abs(sinks64(0, h));
        return UnitRoundoff(wide()) * (2 * kMathRoundings + sizes);
      };
      ExpectWithin(lse, lse64, Bound(lse64, error), "lse");
      ExpectWithin(
          o, o64,
          Bound(o64, [&](std::int64_t n,
                         std::int64_t c) { return error(n, c / K) * std::abs(o64(n, c)); }),
          "o");
    }
  }
}

TEST_P(RecurrentTest, ClampedSwiglu) {
  constexpr Activation kAct = Activation::kClampedSwiglu;
  const double g = 2 * kMathRoundings * UnitRoundoff(wide());
  std::uint64_t seed = 3100;
  for (const RowsShape& s : RowsShapes()) {
    for (const bool in_place : {false, true}) {
      Random random(++seed);
      Matrix gate = GateValues(random, activation(), s);
      Matrix up = random.Normal(activation(), s.rows, s.cols, 5);
      Matrix dy = random.Normal(activation(), s.rows, s.cols, 1);
      const Matrix gate64 = Convert(gate, DType::kF64);
      const Matrix up64 = Convert(up, DType::kF64);
      const Matrix dy64 = Convert(dy, DType::kF64);
      Matrix y = Poisoned(dy), d_gate = Poisoned(dy), d_up = Poisoned(dy);
      Matrix y64 = Poisoned(dy64), d_gate64 = Poisoned(dy64), d_up64 = Poisoned(dy64);
      backend().Run(ops::GatedActivation{kAct, gate.view(), up.view(), y.view()});
      reference().Run(ops::GatedActivation{kAct, gate64.view(), up64.view(), y64.view()});
      Matrix& gate_out = in_place ? gate : d_gate;
      Matrix& up_out = in_place ? up : d_up;
      backend().Run(ops::GatedActivationBackward{kAct, dy.view(), gate.view(), up.view(),
                                                 gate_out.view(), up_out.view()});
      reference().Run(ops::GatedActivationBackward{kAct, dy64.view(), gate64.view(), up64.view(),
                                                   d_gate64.view(), d_up64.view()});
      const auto size = [&](std::int64_t r, std::int64_t c) { return std::abs(gate64(r, c)); };
      const auto factor = [&](std::int64_t r, std::int64_t c) { return 1 + std::abs(up64(r, c)); };
      const auto bound = [&](const auto& of) { return Bound(dy64, of); };
      ExpectWithin(y, y64, bound([&](std::int64_t r, std::int64_t c) {
                     return g * size(r, c) * factor(r, c);
                   }),
                   "y");
      ExpectWithin(gate_out, d_gate64, bound([&](std::int64_t r, std::int64_t c) {
                     return g * (1 + 2 * size(r, c)) * factor(r, c) * std::abs(dy64(r, c));
                   }),
                   "d_gate");
      ExpectWithin(up_out, d_up64, bound([&](std::int64_t r, std::int64_t c) {
                     return g * size(r, c) * std::abs(dy64(r, c));
                   }),
                   "d_up");
    }
  }
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_SINKS_H_
