// What training minimizes: the cross-entropy of one answer among its labels.
#ifndef QLORA_DECISION_DECISION_LOSS_H_
#define QLORA_DECISION_DECISION_LOSS_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decision/question.h"

namespace qlora {

struct DecisionLossOptions {
  double label_smoothing = 0;  // e below, in [0, 1)
  double brier_weight = 0;     // from 0 on, as the next
  double ordinal_weight = 0;   // of score questions
};

// Errors: InvalidInput that names the option.
void CheckLossOptions(const DecisionLossOptions& options);

// log softmax(z), of real or complex numbers.
template <typename T>
std::vector<T> LogSoftmax(std::span<const T> z) {
  double largest = std::real(z[0]);
  for (const T& value : z) largest = std::max(largest, std::real(value));
  T sum = 0;
  for (const T& value : z) sum += std::exp(value - largest);
  std::vector<T> log_p(z.begin(), z.end());
  for (T& value : log_p) value -= largest + std::log(sum);
  return log_p;
}
template <typename T>
std::vector<T> Softmax(std::span<const T> z) {
  std::vector<T> p = LogSoftmax(z);
  for (T& value : p) value = std::exp(value);
  return p;
}

// The loss of one question, with logits z (n) of its labels and shares t (n), which sum to 1:
//
//   L = - sum_k t'_k log p_k  +  brier_weight sum_k (p_k - t_k)^2
//       +  ordinal_weight sum_jk p_j t_k |j - k| / (n - 1)          of score questions
//   p = softmax(z),  t' = (1 - e) t + e / n
//
// A template, so that its derivative can be taken by a complex step.
template <typename T>
T DecisionLoss(std::span<const T> z, std::span<const double> t, QuestionType type,
               const DecisionLossOptions& options) {
  const std::size_t n = z.size();
  const std::vector<T> log_p = LogSoftmax(z);
  const std::vector<T> p = Softmax(z);
  const double e = options.label_smoothing;
  T loss = 0;
  T brier = 0;
  T distance = 0;
  for (std::size_t k = 0; k < n; ++k) {
    loss -= ((1 - e) * t[k] + e / static_cast<double>(n)) * log_p[k];
    brier += (p[k] - t[k]) * (p[k] - t[k]);
    for (std::size_t j = 0; j < n; ++j) {
      distance += p[j] * t[k] * std::abs(static_cast<double>(j) - static_cast<double>(k));
    }
  }
  loss += options.brier_weight * brier;
  if (type == QuestionType::kScore) {
    loss += options.ordinal_weight * distance / static_cast<double>(n - 1);
  }
  return loss;
}

// dL/dz (n), with d = p - t and c_j = sum_k t_k |j - k| / (n - 1):
//
//   p - t'  +  2 brier_weight p (d - p.d)  +  ordinal_weight p (c - p.c)
std::vector<double> DecisionLossGradient(std::span<const double> z, std::span<const double> t,
                                         QuestionType type, const DecisionLossOptions& options);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_LOSS_H_
