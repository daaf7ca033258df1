// The definition of the ops of a mixture of experts. See reference_elementwise.h.
#ifndef QLORA_BACKEND_REFERENCE_EXPERTS_H_
#define QLORA_BACKEND_REFERENCE_EXPERTS_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "backend/reference_elementwise.h"

namespace qlora::reference {

// p = softmax(logits);  the k largest, in falling order;  weight = p [/ their sum]
template <typename T>
void SelectExperts(Mat<const T> logits, bool normalize, std::int32_t* experts, Mat<T> weights) {
  const std::int64_t k = weights.cols;
  std::vector<std::int32_t> order(logits.cols);
  for (std::int64_t n = 0; n < logits.rows; ++n) {
    const T* x = &logits(n, 0);
    std::iota(order.begin(), order.end(), 0);
    // Among equal logits the lower index comes first.
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [x](std::int32_t a, std::int32_t b) {
                        const auto u = std::real(x[a]);
                        const auto v = std::real(x[b]);
                        return u != v ? u > v : a < b;
                      });
    const T lse = LogSumExp(x, logits.cols);
    T sum = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int32_t expert = order[j];
      experts[n * k + j] = expert;
      weights(n, j) = std::exp(x[expert] - lse);
      sum += weights(n, j);
    }
    for (std::int64_t j = 0; normalize && j < k; ++j) weights(n, j) /= sum;
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

// With q the softmax over the chosen logits when normalised, otherwise over all logits:
//   d logits = q * (d - sum(q d)),  d = d_weights at the chosen experts, 0 elsewhere
template <typename T>
void SelectExpertsBackward(Mat<const T> d_weights, const std::int32_t* experts,
                           Mat<const T> weights, bool normalize, Mat<T> logits_inout) {
  const std::int64_t k = d_weights.cols;
  for (std::int64_t n = 0; n < logits_inout.rows; ++n) {
    T* x = &logits_inout(n, 0);
    T mean = 0;
    for (std::int64_t j = 0; j < k; ++j) mean += weights(n, j) * d_weights(n, j);
    const T lse = LogSumExp(x, logits_inout.cols);
    for (std::int64_t e = 0; e < logits_inout.cols; ++e) {
      x[e] = normalize ? T(0) : -std::exp(x[e] - lse) * mean;
    }
    for (std::int64_t j = 0; j < k; ++j) {
      T& out = x[experts[n * k + j]];
      out += weights(n, j) * (normalize ? d_weights(n, j) - mean : d_weights(n, j));
    }
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
