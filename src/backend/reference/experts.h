// The definition of the ops of a mixture of experts. See elementwise.h.
#ifndef QLORA_BACKEND_REFERENCE_EXPERTS_H_
#define QLORA_BACKEND_REFERENCE_EXPERTS_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "backend/reference/elementwise.h"

namespace qlora::reference {

// How a token's experts are weighted; see ops::RouteExperts.
struct RouterRule {
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = false;
  float scale = 1;
};

// p = softmax(logits) or sigmoid(logits);  the k largest of p + bias, in falling order;
// weight = scale p [/ (their sum + epsilon)]
template <typename T>
void SelectExperts(Mat<const T> logits, Mat<const T> bias, const RouterRule& rule,
                   std::int32_t* experts, Mat<T> weights) {
  const std::int64_t k = weights.cols;
  const bool softmax = rule.score == RouterScore::kSoftmax;
  const T scale = static_cast<T>(rule.scale);
  std::vector<std::int32_t> order(logits.cols);
  // What decides: without a bias the order of the logits is that of p.
  std::vector<decltype(std::real(T()))> keys(logits.cols);
  for (std::int64_t n = 0; n < logits.rows; ++n) {
    const T* x = &logits(n, 0);
    const T lse = softmax ? LogSumExp(x, logits.cols) : T(0);
    const auto p = [&](std::int64_t e) {
      return softmax ? std::exp(x[e] - lse) : Sigmoid(x[e]).value;
    };
    for (std::int64_t e = 0; e < logits.cols; ++e) {
      keys[e] = std::real(bias.empty() ? x[e] : p(e) + bias(0, e));
    }
    std::iota(order.begin(), order.end(), 0);
    // Among equal keys the lower index comes first.
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [&](std::int32_t a, std::int32_t b) {
                        return keys[a] != keys[b] ? keys[a] > keys[b] : a < b;
                      });
    T sum = softmax ? T(0) : static_cast<T>(kSigmoidSumEpsilon);
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int32_t expert = order[j];
      experts[n * k + j] = expert;
      weights(n, j) = p(expert);
      sum += weights(n, j);
    }
    for (std::int64_t j = 0; rule.normalize && j < k; ++j) weights(n, j) /= sum;
    for (std::int64_t j = 0; rule.scale != 1 && j < k; ++j) weights(n, j) *= scale;
  }
}

// Orders the pairs by expert, pairs of one expert by token:
//   begin[e] = the number of pairs of experts below e;  slots[pair] = begin[e] + its rank within e
inline void FillSlots(std::int64_t per_token, const RoutingView& routing) {
  const std::int64_t experts = routing.begin.size - 1;
  std::fill_n(routing.begin.data, experts + 1, 0);
  for (std::int64_t pair = 0; pair < routing.experts.size; ++pair) {
    ++routing.begin.data[routing.experts.data[pair] + 1];
  }
  std::partial_sum(routing.begin.data, routing.begin.data + experts + 1, routing.begin.data);
  std::vector<std::int32_t> next(routing.begin.data, routing.begin.data + experts);
  for (std::int64_t pair = 0; pair < routing.experts.size; ++pair) {
    const std::int32_t slot = next[routing.experts.data[pair]]++;
    routing.pairs.data[slot] = static_cast<std::int32_t>(pair);
    routing.tokens.data[slot] = static_cast<std::int32_t>(pair / per_token);
    routing.slots.data[pair] = slot;
  }
}

// w: weights, d = d_weights at the chosen experts, 0 elsewhere, c: the scale.
//   softmax   d logits = w (d - sum(w d) / c) when normalised, otherwise w d - p sum(w d)
//   sigmoid   d logits = (1 - p) w (d - sum(w d) / c), otherwise (1 - p) w d
template <typename T>
void SelectExpertsBackward(Mat<const T> d_weights, const std::int32_t* experts,
                           Mat<const T> weights, const RouterRule& rule, Mat<T> logits_inout) {
  const std::int64_t k = d_weights.cols;
  const bool softmax = rule.score == RouterScore::kSoftmax;
  std::vector<T> rest(k, T(1));  // 1 - p of sigmoids
  for (std::int64_t n = 0; n < logits_inout.rows; ++n) {
    T* x = &logits_inout(n, 0);
    T mean = 0;
    for (std::int64_t j = 0; j < k; ++j) mean += weights(n, j) * d_weights(n, j);
    const T lse = softmax ? LogSumExp(x, logits_inout.cols) : T(0);
    for (std::int64_t j = 0; !softmax && j < k; ++j) {
      rest[j] = Sigmoid(-x[experts[n * k + j]]).value;
    }
    for (std::int64_t e = 0; e < logits_inout.cols; ++e) {
      x[e] = rule.normalize || !softmax ? T(0) : -std::exp(x[e] - lse) * mean;
    }
    if (rule.scale != 1) mean /= static_cast<T>(rule.scale);
    for (std::int64_t j = 0; j < k; ++j) {
      T& out = x[experts[n * k + j]];
      const T d = rule.normalize ? d_weights(n, j) - mean : d_weights(n, j);
      out += rest[j] * weights(n, j) * d;
    }
  }
}

// y = sigmoid(gate) x, one gate a row
template <typename T>
void GateRows(Mat<const T> x, Mat<const T> gate, Mat<T> y) {
  for (std::int64_t n = 0; n < y.rows; ++n) {
    const T value = Sigmoid(gate(n, 0)).value;
    for (std::int64_t c = 0; c < y.cols; ++c) y(n, c) = value * x(n, c);
  }
}

// d_gate = sigmoid'(gate) sum(dy x);  dx = sigmoid(gate) dy
template <typename T>
void GateRowsBackward(Mat<const T> dy, Mat<const T> x, Mat<const T> gate, Mat<T> d_gate,
                      Mat<T> dx) {
  for (std::int64_t n = 0; n < dy.rows; ++n) {
    const ActivationValue<T> s = Sigmoid(gate(n, 0));
    T sum = 0;
    for (std::int64_t c = 0; c < dy.cols; ++c) {
      sum += dy(n, c) * x(n, c);
      dx(n, c) = s.value * dy(n, c);
    }
    d_gate(n, 0) = s.slope * sum;
  }
}

// y = scale x, one factor a row
template <typename T>
void ScaleRows(Mat<const T> x, Mat<const T> scale, Mat<T> y) {
  for (std::int64_t n = 0; n < y.rows; ++n) {
    for (std::int64_t c = 0; c < y.cols; ++c) y(n, c) = scale(0, n) * x(n, c);
  }
}

// dots = sum over the columns of x y
template <typename T>
void RowDots(Mat<const T> x, Mat<const T> y, Mat<T> dots) {
  for (std::int64_t n = 0; n < x.rows; ++n) {
    T sum = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) sum += x(n, c) * y(n, c);
    dots(0, n) = sum;
  }
}

}  // namespace qlora::reference

#endif  // QLORA_BACKEND_REFERENCE_EXPERTS_H_
