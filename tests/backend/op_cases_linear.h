// Linear and LinearBackward. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_LINEAR_H_
#define QLORA_TESTS_BACKEND_OP_CASES_LINEAR_H_

#include <algorithm>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_util.h"
#include "backend/test_weight.h"

namespace qlora::testing_util {

struct LinearCase {
  std::string name;
  std::int64_t rows;              // N
  std::int64_t in;                // I
  std::vector<std::int64_t> out;  // O of each linear of the group
  WeightKind weight;
  std::int64_t rank = 0;  // R, 0: no adapter
  bool bias = false;
  float dropout = 0;
  Store store = Store::kSet;
  bool wide_x = false;  // activations in the wide type
  bool wide_y = false;
  bool want_dx = true;
};

// All operands of Linear and LinearBackward for one group.
struct LinearGroup {
  std::vector<TestWeight> weights;  // (O, I)
  std::vector<Matrix> bias, a, b;   // (1, O), (R, I), (O, R)
  Matrix x;                         // (N, I)
  std::vector<Matrix> y, u;         // (N, O), (N, R)
  std::vector<Matrix> dy, da, db;   // (N, O), (R, I), (O, R)
  Matrix dx;                        // (N, I)
  float scale = 0;
  float dropout = 0;

  std::vector<LinearView> Views() const {
    std::vector<LinearView> views;
    for (std::size_t l = 0; l < weights.size(); ++l) {
      views.push_back({.weight = weights[l].view(),
                       .bias = bias[l].view(),
                       .lora = {.a = a[l].view(),
                                .b = b[l].view(),
                                .scale = scale,
                                .dropout = dropout,
                                .dropout_key = MakeKey(7, RandomPlace::kLoraDropout, l)}});
    }
    return views;
  }

  void Forward(Backend& backend, Store store) {
    std::vector<LinearOutput> outputs;
    for (std::size_t l = 0; l < weights.size(); ++l) outputs.push_back({y[l].view(), u[l].view()});
    backend.Linear(Views(), std::as_const(x).view(), outputs, store);
  }

  void Backward(Backend& backend, Store store) {
    std::vector<LinearGradient> gradients;
    for (std::size_t l = 0; l < weights.size(); ++l) {
      gradients.push_back(
          {std::as_const(dy[l]).view(), std::as_const(u[l]).view(), da[l].view(), db[l].view()});
    }
    backend.LinearBackward(Views(), std::as_const(x).view(), gradients, dx.view(), store);
  }

  void ForEach(const std::function<void(Matrix&)>& fn) {
    for (auto* list : {&bias, &a, &b, &y, &u, &dy, &da, &db}) std::ranges::for_each(*list, fn);
    fn(x);
    fn(dx);
  }

  // The same values in another type; weights stay as they are.
  LinearGroup In(DType dtype) const {
    LinearGroup copy = *this;
    copy.ForEach([&](Matrix& m) { m = Convert(m, dtype); });
    return copy;
  }

  // Absolute values, in float64: the op on them gives the sum of absolute values of all terms, or
  // only of those that go through the frozen weight (and of what was in the outputs before) or
  // through the adapter.
  LinearGroup Magnitudes(bool frozen_part) const {
    LinearGroup copy = *this;
    copy.scale = std::abs(scale);
    copy.ForEach([](Matrix& m) { m = Abs(m); });
    for (std::size_t l = 0; l < weights.size(); ++l) {
      copy.weights[l] = frozen_part
                            ? TestWeight(Abs(weights[l].Values()))
                            : TestWeight(Filled(DType::kF64, weights[l].rows(), x.cols(), 0));
      if (frozen_part) {
        copy.a[l] = copy.b[l] = copy.u[l] = copy.da[l] = copy.db[l] = Matrix();
      } else {
        copy.bias[l] = Matrix();
        copy.y[l] = Filled(DType::kF64, copy.y[l].rows(), copy.y[l].cols(), 0);
      }
    }
    if (!frozen_part) copy.dx = Filled(DType::kF64, dx.rows(), dx.cols(), 0);
    return copy;
  }
};

inline LinearGroup MakeLinearGroup(const LinearCase& c, Precision precision, DType precise,
                                   std::uint64_t seed) {
  Random random(seed);
  const DType x_type = c.wide_x ? precision.wide : precision.activation;
  const DType y_type = c.wide_y ? precision.wide : precision.activation;
  const DType wide = precision.wide;
  const std::int64_t N = c.rows;
  const std::int64_t I = c.in;
  const std::int64_t R = c.rank;
  LinearGroup group;
  group.scale = 0.75f;
  group.dropout = c.rank > 0 ? c.dropout : 0;
  group.x = random.Normal(x_type, N, I, 1, precise);
  for (const std::int64_t O : c.out) {
    group.weights.emplace_back(c.weight, wide, O, I, precise, random);
    group.bias.push_back(c.bias ? random.Normal(wide, 1, O, 1) : Matrix());
    group.a.push_back(random.Normal(wide, R, R == 0 ? 0 : I, 0.3, precise));
    group.b.push_back(random.Normal(wide, R == 0 ? 0 : O, R, 0.3, precise));
    group.y.push_back(random.Normal(y_type, N, O, 1));
    group.u.push_back(random.Normal(wide, R == 0 ? 0 : N, R, 1, precise));
    group.dy.push_back(random.Normal(y_type, N, O, 1, precise));
    group.da.push_back(random.Normal(wide, R, R == 0 ? 0 : I, 1));
    group.db.push_back(random.Normal(wide, R == 0 ? 0 : O, R, 1));
  }
  group.dx = c.want_dx ? random.Normal(x_type, N, I, 1) : Matrix();
  if (c.store == Store::kSet) {
    group.dx = Poisoned(group.dx);
    for (Matrix& y : group.y) y = Poisoned(y);
  }
  return group;
}

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
