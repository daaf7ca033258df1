// The definition of causal attention over one span and of its backward.
// Derivation: docs/math/attention.md.
#ifndef QLORA_BACKEND_REFERENCE_ATTENTION_H_
#define QLORA_BACKEND_REFERENCE_ATTENTION_H_

#include <vector>

#include "backend/reference/elementwise.h"

namespace qlora::reference {

// The keys [first, last] of a span that query i of the span sees.
struct VisibleKeys {
  std::int64_t first;
  std::int64_t last;
};
inline VisibleKeys KeysOf(const AttentionShape& shape, const AttentionSpan& span, std::int64_t i) {
  const std::int64_t last = span.kv_rows - span.q_rows + i;
  const std::int64_t first =
      shape.window > 0 ? std::max<std::int64_t>(0, last - shape.window + 1) : 0;
  return {first, last};
}

// s_j = cap(scale q . k_j), the capped score of query row n and key row m for query head h.
template <typename T>
T Score(const AttentionShape& shape, Mat<const T> q, Mat<const T> k, std::int64_t n, std::int64_t m,
        std::int64_t h) {
  const std::int64_t g = h / (shape.heads / shape.kv_heads);
  T dot = 0;
  for (std::int64_t d = 0; d < shape.head_dim; ++d) {
    dot += q(n, h * shape.head_dim + d) * k(m, g * shape.head_dim + d);
  }
  return SoftCap(static_cast<T>(shape.scale) * dot, static_cast<T>(shape.softcap));
}

// lse = log sum_j exp(s_j);  p_j = exp(s_j - lse);  o = sum_j p_j v_j
template <typename T>
void Attention(const AttentionShape& shape, const AttentionSpan& span, Mat<const T> q,
               Mat<const T> k, Mat<const T> v, Mat<T> o, Mat<T> lse) {
  const std::int64_t K = shape.head_dim;
  std::vector<T> scores(span.kv_rows);
  for (std::int64_t i = 0; i < span.q_rows; ++i) {
    const std::int64_t n = span.q_begin + i;
    const VisibleKeys keys = KeysOf(shape, span, i);
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::int64_t g = h / (shape.heads / shape.kv_heads);
      for (std::int64_t j = keys.first; j <= keys.last; ++j) {
        scores[j] = Score(shape, q, k, n, span.kv_begin + j, h);
      }
      lse(n, h) = LogSumExp(scores.data() + keys.first, keys.last - keys.first + 1);
      for (std::int64_t d = 0; d < K; ++d) o(n, h * K + d) = T(0);
      for (std::int64_t j = keys.first; j <= keys.last; ++j) {
        const T p = std::exp(scores[j] - lse(n, h));
        for (std::int64_t d = 0; d < K; ++d) {
          o(n, h * K + d) += p * v(span.kv_begin + j, g * K + d);
        }
      }
    }
  }
}

// f = 1 / (1 + e^(sink - lse));  o *= f;  lse -= log f
template <typename T>
void AttentionSinks(Mat<const T> sinks, Mat<T> lse_inout, Mat<T> o_inout) {
  const std::int64_t K = o_inout.cols / sinks.cols;
  for (std::int64_t n = 0; n < o_inout.rows; ++n) {
    for (std::int64_t h = 0; h < sinks.cols; ++h) {
      const T both[] = {lse_inout(n, h), sinks(0, h)};
      const T f = T(1) / (T(1) + std::exp(sinks(0, h) - lse_inout(n, h)));
      for (std::int64_t d = 0; d < K; ++d) o_inout(n, h * K + d) *= f;
      lse_inout(n, h) = LogSumExp(both, 2);
    }
  }
}

// dp_j = do . v_j;  ds_j = p_j (dp_j - do . o) cap'(s_j)
// dq = scale sum_j ds_j k_j;  dk_j = scale sum ds_j q;  dv_j = sum p_j do
// (the sums of dk and dv go over the queries that see key j and the query heads that share it).
template <typename T>
void AttentionBackward(const AttentionShape& shape, const AttentionSpan& span, Mat<const T> d_o,
                       Mat<const T> q, Mat<const T> k, Mat<const T> v, Mat<const T> o,
                       Mat<const T> lse, Mat<T> dq, Mat<T> dk, Mat<T> dv) {
  const std::int64_t K = shape.head_dim;
  const T scale = static_cast<T>(shape.scale);
  for (std::int64_t j = 0; j < span.kv_rows; ++j) {
    for (std::int64_t c = 0; c < dk.cols; ++c) {
      dk(span.kv_begin + j, c) = dv(span.kv_begin + j, c) = T(0);
    }
  }
  for (std::int64_t i = 0; i < span.q_rows; ++i) {
    const std::int64_t n = span.q_begin + i;
    const VisibleKeys keys = KeysOf(shape, span, i);
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::int64_t hq = h * K;                                   // column of head h in q, o
      const std::int64_t hk = h / (shape.heads / shape.kv_heads) * K;  // and of its head in k, v
      T delta = 0;                                                     // do . o
      for (std::int64_t d = 0; d < K; ++d) {
        delta += d_o(n, hq + d) * o(n, hq + d);
        dq(n, hq + d) = T(0);
      }
      for (std::int64_t j = keys.first; j <= keys.last; ++j) {
        const std::int64_t m = span.kv_begin + j;
        const T s = Score(shape, q, k, n, m, h);
        const T p = std::exp(s - lse(n, h));
        T dp = 0;
        for (std::int64_t d = 0; d < K; ++d) dp += d_o(n, hq + d) * v(m, hk + d);
        const T ds = p * (dp - delta) * SoftCapSlope(s, static_cast<T>(shape.softcap));
        for (std::int64_t d = 0; d < K; ++d) {
          dq(n, hq + d) += scale * ds * k(m, hk + d);
          dk(m, hk + d) += scale * ds * q(n, hq + d);
          dv(m, hk + d) += p * d_o(n, hq + d);
        }
      }
    }
  }
}

}  // namespace qlora::reference

#endif  // QLORA_BACKEND_REFERENCE_ATTENTION_H_
