// Linear and LinearBackward. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_LINEAR_H_
#define QLORA_TESTS_BACKEND_OP_CASES_LINEAR_H_

#include <algorithm>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_linear.h"

namespace qlora::testing_util {

inline std::vector<LinearCase> LinearCases() {
  using enum WeightKind;
  std::vector<LinearCase> cases = {
      {"one_value", 1, 1, {1}, kF32},
      {"decode", 1, 256, {96}, kNf4, 8},
      {"decode_group", 1, 192, {64, 33, 1}, kNf4, 4, true},
      {"few_rows", 3, 100, {37}, kBF16, 3, true},
      {"tall", 67, 64, {48}, kF16, 16},
      {"tiles", 33, 320, {160}, kBF16, 8, false, 0.1f},
      {"deep", 5, 1000, {24}, kF32, 5, true, 0.5f},
      {"group_nf4", 17, 128, {96, 32, 32}, kNf4, 8, true, 0.25f},
      {"group_bf16", 9, 64, {40, 24}, kBF16, 2},
      {"nf4_rows_cross_blocks", 6, 90, {35}, kNf4, 4},
      {"nf4_odd", 4, 33, {7}, kNf4, 3},
      {"nf4_f16_scales", 8, 128, {64}, kNf4F16, 4},
      {"nf4_bf16_scales", 8, 96, {64}, kNf4BF16, 4},
      {"nf4_double", 12, 512, {80}, kNf4DoubleBnb, 8},
      {"nf4_double_torchao", 12, 512, {80}, kNf4DoubleTorchao, 8},
      {"nf4_large_blocks", 5, 256, {48}, kNf4Block128, 4},
      {"no_adapter", 21, 72, {56}, kNf4},
      {"no_adapter_bias", 2, 72, {56}, kBF16, 0, true},
      {"empty_batch", 0, 32, {16}, kNf4, 4},
  };
  const std::size_t plain = cases.size();
  for (std::size_t i = 0; i < plain; ++i) {
    LinearCase add = cases[i];
    add.name += "_add";
    add.store = Store::kAdd;
    add.wide_y = i % 2 == 0;
    add.wide_x = i % 3 == 0;
    cases.push_back(add);
    if (i % 4 != 1) continue;
    LinearCase no_dx = cases[i];
    no_dx.name += "_no_dx";
    no_dx.want_dx = false;
    cases.push_back(no_dx);
  }
  return cases;
}

inline BackendLimits LimitsOf(const LinearCase& c) {
  std::int64_t out = 0;
  for (const std::int64_t O : c.out) out += O;
  const auto group = static_cast<std::int64_t>(c.out.size());
  return {.rows = c.rows, .features = std::max(c.in, out), .lora_rank = c.rank * group};
}

// bound = g * frozen + h * adapter
inline Matrix LinearBound(double g, const Matrix& frozen, double h, const Matrix& adapter) {
  Matrix bound(DType::kF64, frozen.rows(), frozen.cols());
  for (std::int64_t r = 0; r < bound.rows(); ++r) {
    for (std::int64_t c = 0; c < bound.cols(); ++c) {
      bound.Set(r, c, g * frozen(r, c) + (adapter.empty() ? 0 : h * adapter(r, c)));
    }
  }
  return bound;
}
inline Matrix Scaled(double factor, const Matrix& m) {
  return Map(m, DType::kF64, [=](Complex x) { return factor * x; });
}

TEST_P(OpTest, Linear) {
  std::uint64_t seed = 100;
  for (const LinearCase& c : LinearCases()) {
    SCOPED_TRACE(c.name);
    LinearGroup group = MakeLinearGroup(c, GetParam().precision, precise(), ++seed);
    for (Matrix& u : group.u) u = Poisoned(u);
    LinearGroup expected = group.In(DType::kF64);
    LinearGroup frozen = group.Magnitudes(true);
    LinearGroup adapter = group.Magnitudes(false);
    backend().Reserve(LimitsOf(c));
    group.Forward(backend(), c.store);
    expected.Forward(reference(), c.store);
    frozen.Forward(reference(), c.store);
    adapter.Forward(reference(), Store::kSet);

    // Roundings to the compute type: a 4-bit weight when decoded; x / (1 - dropout), u, and the
    // scale folded into a factor.
    const double unit = UnitRoundoff(wide());
    const double weight_error = group.weights[0].quantized() ? compute_unit() : 0;
    const double drop_error = c.dropout > 0 ? compute_unit() : 0;
    for (std::size_t l = 0; l < c.out.size(); ++l) {
      ExpectWithin(group.u[l], expected.u[l],
                   Scaled(Gamma(c.in + 3, unit) + drop_error, adapter.u[l]), "u");
      ExpectWithin(group.y[l], expected.y[l],
                   LinearBound(Gamma(c.in + c.rank + 6, unit) + weight_error, frozen.y[l],
                               Gamma(c.in + c.rank + 9, unit) + drop_error + 2.1 * compute_unit(),
                               adapter.y[l]),
                   "y");
    }
  }
}

TEST_P(OpTest, LinearBackward) {
  std::uint64_t seed = 200;
  for (const LinearCase& c : LinearCases()) {
    SCOPED_TRACE(c.name);
    LinearGroup group = MakeLinearGroup(c, GetParam().precision, precise(), ++seed);
    LinearGroup expected = group.In(DType::kF64);
    LinearGroup frozen = group.Magnitudes(true);
    LinearGroup adapter = group.Magnitudes(false);
    backend().Reserve(LimitsOf(c));
    group.Backward(backend(), c.store);
    expected.Backward(reference(), c.store);
    frozen.Backward(reference(), c.store);
    adapter.Backward(reference(), Store::kSet);

    // Roundings to the compute type: a decoded 4-bit weight; du, x / (1 - dropout), and the scale
    // folded into a factor.
    const double unit = UnitRoundoff(wide());
    const double weight_error = group.weights[0].quantized() ? compute_unit() : 0;
    const double adapter_error = 3.1 * compute_unit();
    std::int64_t out = 0;
    for (std::size_t l = 0; l < c.out.size(); ++l) {
      out += c.out[l] + c.rank;
      ExpectWithin(group.da[l], expected.da[l],
                   Scaled(Gamma(c.rows + c.out[l] + 6, unit) + adapter_error, adapter.da[l]), "da");
      ExpectWithin(group.db[l], expected.db[l],
                   Scaled(Gamma(c.rows + 4, unit) + adapter_error, adapter.db[l]), "db");
    }
    ExpectWithin(group.dx, expected.dx,
                 LinearBound(Gamma(out + 6, unit) + weight_error, frozen.dx,
                             Gamma(out + 9, unit) + adapter_error, adapter.dx),
                 "dx");
  }
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_LINEAR_H_
