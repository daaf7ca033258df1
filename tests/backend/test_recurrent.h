// The operands of the ops of layers with a state: CausalConv, GatedDeltaRule and their gradients.
#ifndef QLORA_TESTS_BACKEND_TEST_RECURRENT_H_
#define QLORA_TESTS_BACKEND_TEST_RECURRENT_H_

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/test_util.h"

namespace qlora::testing_util {

// Sequences one after the other; sequence i has state i.
inline std::vector<SequenceSpan> SpansOf(const std::vector<std::int64_t>& lengths) {
  std::vector<SequenceSpan> spans;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    spans.push_back({begin, length, std::ssize(spans)});
    begin += length;
  }
  return spans;
}
inline std::int64_t RowsOf(const std::vector<SequenceSpan>& spans) {
  return std::accumulate(spans.begin(), spans.end(), std::int64_t{0},
                         [](std::int64_t sum, const SequenceSpan& s) { return sum + s.rows; });
}

struct ConvCase {
  std::string name;
  std::int64_t channels, taps;
  std::vector<SequenceSpan> spans;
  Activation activation = Activation::kSilu;
  bool bias = false;
};

struct ConvData {
  Matrix x, weight, bias, y, dy, dx, window;

  ConvData In(DType dtype) const {
    ConvData copy = *this;
    for (Matrix* m : {&copy.x, &copy.weight, &copy.bias, &copy.y, &copy.dy, &copy.dx, &copy.window})
      *m = Convert(*m, dtype);
    return copy;
  }
  void Forward(Backend& backend, const ConvCase& c, bool windowed) {
    backend.Run(ops::CausalConv{c.activation, c.spans, x.view(), weight.view(), bias.view(),
                                y.view(), windowed ? window.view() : MatrixView{}});
  }
  void Backward(Backend& backend, const ConvCase& c) {
    backend.Run(ops::CausalConvBackward{c.activation, c.spans, dy.view(), x.view(), weight.view(),
                                        bias.view(), dx.view()});
  }
};

// Inputs and windows are random, outputs poisoned.
inline ConvData MakeConvData(const ConvCase& c, Precision precision, std::uint64_t seed) {
  Random random(seed);
  const std::int64_t rows = RowsOf(c.spans);
  ConvData data;
  data.x = random.Normal(precision.activation, rows, c.channels, 1);
  data.weight = random.Normal(precision.wide, c.channels, c.taps, 0.7);
  if (c.bias) data.bias = random.Normal(precision.wide, 1, c.channels, 1);
  data.dy = random.Normal(precision.activation, rows, c.channels, 1);
  data.y = Poisoned(data.x);
  data.dx = Poisoned(data.x);
  const std::int64_t kept = std::ssize(c.spans) * (c.taps - 1);
  if (kept > 0) data.window = random.Normal(precision.activation, kept, c.channels, 1);
  return data;
}

struct DeltaCase {
  std::string name;
  DeltaRuleShape shape;
  std::vector<SequenceSpan> spans;
  // All tokens are nearly the same and change the state little: sums grow instead of cancelling, so
  // that the bounds of their errors, which are sums of absolute values, are close.
  bool aligned = false;
};

struct DeltaData {
  Matrix q, k, v, a, b, rate, dt_bias, o, state, d_o, dq, dk, dv, da, db;

  DeltaData In(DType dtype) const {
    DeltaData copy = *this;
    for (Matrix* m :
         {&copy.q, &copy.k, &copy.v, &copy.a, &copy.b, &copy.rate, &copy.dt_bias, &copy.o,
          &copy.state, &copy.d_o, &copy.dq, &copy.dk, &copy.dv, &copy.da, &copy.db}) {
      *m = Convert(*m, dtype);
    }
    return copy;
  }
  void Forward(Backend& backend, const DeltaCase& c, bool stateful) {
    backend.Run(ops::GatedDeltaRule{c.shape, c.spans, q.view(), k.view(), v.view(), a.view(),
                                    b.view(), rate.view(), dt_bias.view(), o.view(),
                                    stateful ? state.view() : MatrixView{}});
  }
  void Backward(Backend& backend, const DeltaCase& c) {
    backend.Run(ops::GatedDeltaRuleBackward{
        c.shape, c.spans, d_o.view(), q.view(), k.view(), v.view(), a.view(), b.view(), rate.view(),
        dt_bias.view(), dq.view(), dk.view(), dv.view(), da.view(), db.view()});
  }
};

// Inputs and states are random, outputs poisoned. Heads forget at different rates: the first ones
// in thousands of tokens, later ones at once, with sums of g of hundreds in a chunk. Some keys are
// so short that the epsilon of their norm matters.
inline DeltaData MakeDeltaData(const DeltaCase& c, Precision precision, std::uint64_t seed) {
  Random random(seed);
  const DType type = precision.activation;
  const std::int64_t rows = RowsOf(c.spans);
  const auto& [heads, key_heads, K, V, tiled] = c.shape;
  DeltaData data;
  data.q = random.Normal(type, rows, key_heads * K, 1);
  data.k = random.Normal(type, rows, key_heads * K, 1);
  data.v = random.Normal(type, rows, heads * V, 1);
  data.a = random.Normal(type, rows, heads, 2);
  data.b = random.Normal(type, rows, heads, 2);
  data.d_o = random.Normal(type, rows, heads * V, 1);
  data.rate = random.Normal(precision.wide, 1, heads, 1);
  data.dt_bias = random.Normal(precision.wide, 1, heads, 1);
  for (std::int64_t h = 0; h < heads; ++h) {
    constexpr double kRates[] = {-0.003, -0.3, -8};
    data.rate.Set(0, h, kRates[h % 3]);
  }
  for (std::int64_t n = 2; n < rows; n += 5) {
    for (std::int64_t d = 0; d < data.k.cols(); ++d) data.k.Set(n, d, 1e-3 * data.k(n, d));
  }
  if (c.aligned) {
    for (Matrix* m : {&data.q, &data.k, &data.v, &data.d_o}) {
      *m = Map(*m, type, [](Complex x) { return 1.0 + 0.0625 * x; });
    }
    data.b = Map(data.b, type, [](Complex x) { return 0.0625 * x - 3.0; });
  }
  data.state = random.Normal(precision.wide, std::ssize(c.spans) * heads * K, V, 0.3);
  data.o = Poisoned(data.v);
  data.dq = Poisoned(data.q);
  data.dk = Poisoned(data.k);
  data.dv = Poisoned(data.v);
  data.da = Poisoned(data.a);
  data.db = Poisoned(data.b);
  return data;
}

inline BackendLimits LimitsOf(const DeltaCase& c) {
  std::int64_t longest = 0;
  for (const SequenceSpan& s : c.spans) longest = std::max(longest, s.rows);
  return {.rows = RowsOf(c.spans),
          .gradient_rows = RowsOf(c.spans),
          .gradient_length = longest,
          .delta_rule = c.shape};
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_TEST_RECURRENT_H_
