// The operands of Linear and LinearBackward for one group of linears.
#ifndef QLORA_TESTS_BACKEND_TEST_LINEAR_H_
#define QLORA_TESTS_BACKEND_TEST_LINEAR_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/test_util.h"
#include "backend/test_weight.h"
#include "base/arena.h"
#include "base/matrix.h"
#include "pass/pass_shape.h"

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
  bool prepacked = false;    // weights of which the backend has a better order
  bool has_base = false;     // with Store::kAdd: of each output
  bool some_biases = false;  // with bias: every other linear has one
  SumOrder order = SumOrder::kFastest;
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
  bool has_base = false;
  SumOrder order = SumOrder::kFastest;
  std::vector<std::shared_ptr<Arena>> prepacked;  // of each weight; or empty

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
      if (!prepacked.empty()) views.back().weight.prepacked = prepacked[l]->data();
    }
    return views;
  }

  void Prepack(Backend& backend) {
    for (const TestWeight& weight : weights) {
      const WeightView view = weight.view();
      prepacked.push_back(std::make_shared<Arena>(backend.PrepackedBytes(view)));
      if (prepacked.back()->bytes() > 0) backend.Prepack(view, prepacked.back()->data());
    }
  }

  void Forward(Backend& backend, Store store) {
    std::vector<Matrix> bases;
    // Nothing of a result that has a base is read.
    if (has_base && store == Store::kAdd) bases = std::exchange(y, {});
    for (const Matrix& base : bases) y.push_back(Poisoned(base));
    std::vector<LinearOutput> outputs;
    for (std::size_t l = 0; l < weights.size(); ++l) {
      outputs.push_back({y[l].view(), u[l].view()});
      if (!bases.empty()) outputs[l].base = bases[l].view();
    }
    const std::vector<Matrix> kept = bases;
    backend.Run(ops::Linear{Views(), std::as_const(x).view(), outputs, store, order});
    for (std::size_t l = 0; l < bases.size(); ++l) ExpectEqual(bases[l], kept[l], "base");
  }

  void Backward(Backend& backend, Store store) {
    std::vector<LinearGradient> gradients;
    for (std::size_t l = 0; l < weights.size(); ++l) {
      gradients.push_back(
          {std::as_const(dy[l]).view(), std::as_const(u[l]).view(), da[l].view(), db[l].view()});
    }
    backend.Run(ops::LinearBackward{Views(), std::as_const(x).view(), gradients, dx.view(), store});
  }

  void ForEach(const std::function<void(Matrix&)>& fn) {
    for (auto* list : {&bias, &a, &b, &y, &u, &dy, &da, &db}) std::ranges::for_each(*list, fn);
    fn(x);
    fn(dx);
  }

  // The same values in another type; weights of a storage type stay as they are.
  LinearGroup In(DType dtype) const {
    LinearGroup copy = *this;
    copy.ForEach([&](Matrix& m) { m = Convert(m, dtype); });
    for (TestWeight& weight : copy.weights) weight = weight.In(dtype);
    return copy;
  }

  // The group without its adapters, all absolute values, in float64: an op on it gives the sum of
  // the absolute values of all terms that go through the frozen weight, or were there before.
  LinearGroup FrozenMagnitudes() const {
    LinearGroup copy = *this;
    for (std::size_t l = 0; l < weights.size(); ++l) {
      copy.weights[l] = TestWeight(Abs(weights[l].Values()));
      copy.a[l] = copy.b[l] = copy.u[l] = copy.da[l] = copy.db[l] = Matrix();
    }
    copy.ForEach([](Matrix& m) { m = Abs(m); });
    return copy;
  }

  // What dropout multiplies the input (N, I) of the adapter of linear l by, in float64.
  Matrix DropFactors(std::size_t l) const {
    Matrix factors = Filled(DType::kF64, x.rows(), x.cols(), 1);
    if (dropout == 0) return factors;
    const RandomKey key = Views()[l].lora.dropout_key;
    for (std::int64_t n = 0; n < x.rows(); ++n) {
      for (std::int64_t i = 0; i < x.cols(); ++i) {
        const auto index = static_cast<std::uint64_t>(n * x.cols() + i);
        factors.Set(n, i, RandomUniform(key, index) < dropout ? 0 : 1 / (1 - double{dropout}));
      }
    }
    return factors;
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
  // Powers of two where products are bfloat16, so that it makes no difference whether they are
  // multiplied into an operand before it is rounded.
  const bool exact = precise == DType::kBF16;
  group.scale = exact ? 0.5f : 0.7f;
  group.has_base = c.has_base;
  group.order = c.order;
  group.dropout = c.rank == 0 || c.dropout == 0 ? 0 : exact ? 0.5f : c.dropout;
  group.x = random.Normal(x_type, N, I, 1, precise);
  for (const std::int64_t O : c.out) {
    group.weights.emplace_back(c.weight, wide, O, I, precise, random);
    const bool has_bias = c.bias && !(c.some_biases && group.bias.size() % 2 == 1);
    group.bias.push_back(has_bias ? random.Normal(wide, 1, O, 1) : Matrix());
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

inline BackendLimits LimitsOf(const LinearCase& c) {
  std::int64_t out = 0;
  for (const std::int64_t O : c.out) out += O;
  const auto group = static_cast<std::int64_t>(c.out.size());
  return {.rows = c.rows,
          .features = std::max(c.in, out),
          .lora_rank = c.rank * group,
          .any_order = c.order != SumOrder::kFastest,
          .gradient_rows = c.rows};
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_TEST_LINEAR_H_
