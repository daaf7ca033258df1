// The gated activations and their gradient. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_ACTIVATION_H_
#define QLORA_TESTS_BACKEND_OP_CASES_ACTIVATION_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_rows.h"
#include "backend/test_util.h"

namespace qlora::testing_util {

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
    for (const Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu}) {
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
    for (const Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu}) {
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

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_ACTIVATION_H_
