// The definitions of the ops of recurrent_ops.h over one span, token by token, and of their
// gradients. Derivations: docs/math/causal_conv.md, docs/math/gated_delta_rule.md.
#ifndef QLORA_BACKEND_REFERENCE_RECURRENT_H_
#define QLORA_BACKEND_REFERENCE_RECURRENT_H_

#include <cmath>
#include <vector>

#include "backend/reference/elementwise.h"

namespace qlora::reference {

// ---- Causal convolution.

// Row t of a span, counted from its start; rows before it are those of the window, or 0.
template <typename T>
T Tap(Mat<const T> x, const SequenceSpan& span, Mat<const T> window, std::int64_t kept,
      std::int64_t t, std::int64_t c) {
  if (t >= 0) return x(span.begin + t, c);
  return window.empty() ? T(0) : window((span.state + 1) * kept + t, c);
}

// h(t) = bias + sum_i w(i) x(t - K + 1 + i)
template <typename T>
T Convolved(Mat<const T> x, Mat<const T> w, Mat<const T> bias, const SequenceSpan& span,
            Mat<const T> window, std::int64_t t, std::int64_t c) {
  T h = bias.empty() ? T(0) : bias(0, c);
  for (std::int64_t i = 0; i < w.cols; ++i) {
    h += w(c, i) * Tap(x, span, window, w.cols - 1, t - w.cols + 1 + i, c);
  }
  return h;
}

// y = act(h); the window becomes the last K - 1 rows of the old window and x.
template <typename T>
void CausalConv(Activation activation, const SequenceSpan& span, Mat<const T> x, Mat<const T> w,
                Mat<const T> bias, Mat<T> y, Mat<T> window) {
  const std::int64_t kept = w.cols - 1;
  for (std::int64_t c = 0; c < x.cols; ++c) {
    for (std::int64_t t = 0; t < span.rows; ++t) {
      y(span.begin + t, c) =
          Activate(activation, Convolved<T>(x, w, bias, span, window, t, c)).value;
    }
    // What becomes row j was in a later row.
    for (std::int64_t j = 0; !window.empty() && j < kept; ++j) {
      window(span.state * kept + j, c) = Tap<T>(x, span, window, kept, span.rows - kept + j, c);
    }
  }
}

// dh = dy act'(h);  dx(t) = sum_i w(i) dh(t + K - 1 - i)
template <typename T>
void CausalConvBackward(Activation activation, const SequenceSpan& span, Mat<const T> dy,
                        Mat<const T> x, Mat<const T> w, Mat<const T> bias, Mat<T> dx) {
  for (std::int64_t c = 0; c < x.cols; ++c) {
    for (std::int64_t t = 0; t < span.rows; ++t) {
      dx(span.begin + t, c) = T(0);
      // Token s reads x(t) through tap t - s + K - 1.
      for (std::int64_t s = t; s < std::min(t + w.cols, span.rows); ++s) {
        const T h = Convolved<T>(x, w, bias, span, {}, s, c);
        const T dh = dy(span.begin + s, c) * Activate(activation, h).slope;
        dx(span.begin + t, c) += w(c, t - s + w.cols - 1) * dh;
      }
    }
  }
}

// ---- Gated delta rule.

// softplus(x) = log(1 + e^x) and its slope sigma(x), without overflow for large real parts.
template <typename T>
ActivationValue<T> Softplus(T x) {
  const bool positive = std::real(x) > 0;
  const T e = std::exp(positive ? -x : x);  // at most 1
  // log(1 + e), without the rounding of 1 + e.
  const T log = T(2) * std::atanh(e / (T(2) + e));
  return positive ? ActivationValue<T>{x + log, T(1) / (T(1) + e)}
                  : ActivationValue<T>{log, e / (T(1) + e)};
}

// One value head at one row: the operands of a step, normed and scaled.
template <typename T>
struct DeltaStep {
  std::vector<T> q, k;  // (K) normed; q also times K^-1/2
  T q_rstd, k_rstd;     // (sum x^2 + epsilon)^-1/2
  T decay;              // e^g
  T decay_slope;        // dg / da
  T beta;
};

template <typename T, typename Op>
DeltaStep<T> StepAt(const Op& op, std::int64_t n, std::int64_t h) {
  const std::int64_t K = op.shape.key_dim;
  const std::int64_t g = op.shape.key_head(h);
  DeltaStep<T> step;
  const auto norm = [&](Mat<const T> x, std::vector<T>& out, T scale) {
    T sum = static_cast<T>(kDeltaRuleEpsilon);
    for (std::int64_t d = 0; d < K; ++d) sum += x(n, g * K + d) * x(n, g * K + d);
    const T rstd = T(1) / std::sqrt(sum);
    for (std::int64_t d = 0; d < K; ++d) out.push_back(scale * rstd * x(n, g * K + d));
    return rstd;
  };
  step.q_rstd = norm(op.q, step.q, T(1) / std::sqrt(static_cast<T>(K)));
  step.k_rstd = norm(op.k, step.k, T(1));
  const ActivationValue<T> softplus = Softplus<T>(op.a(n, h) + op.dt_bias(0, h));
  step.decay = std::exp(op.rate(0, h) * softplus.value);
  step.decay_slope = op.rate(0, h) * softplus.slope;
  step.beta = Softplus<T>(op.b(n, h)).slope;
  return step;
}

// The operands of GatedDeltaRule as typed matrices; shapes as there.
template <typename T>
struct DeltaRuleOf {
  DeltaRuleShape shape;
  Mat<const T> q, k, v, a, b, rate, dt_bias;
};

// What a step leaves for its gradient.
template <typename T>
struct DeltaTrace {
  DeltaStep<T> step;
  std::vector<T> decayed;  // (K, V) P
  std::vector<T> error;    // (V) v - P^T k
};

// P = e^g S;  u = beta (v - P^T k);  S = P + k u^T, for value head h at row n.
template <typename T>
DeltaTrace<T> AdvanceState(const DeltaRuleOf<T>& op, std::int64_t n, std::int64_t h, Mat<T> S) {
  const std::int64_t K = op.shape.key_dim;
  const std::int64_t V = op.shape.value_dim;
  DeltaTrace<T> trace{StepAt<T>(op, n, h), std::vector<T>(K * V), std::vector<T>(V)};
  for (std::int64_t j = 0; j < V; ++j) {
    trace.error[j] = op.v(n, h * V + j);
    for (std::int64_t d = 0; d < K; ++d) {
      trace.decayed[d * V + j] = trace.step.decay * S(d, j);
      trace.error[j] -= trace.decayed[d * V + j] * trace.step.k[d];
    }
    const T u = trace.step.beta * trace.error[j];
    for (std::int64_t d = 0; d < K; ++d) S(d, j) = trace.decayed[d * V + j] + trace.step.k[d] * u;
  }
  return trace;
}

// o = S^T q, token by token; S (K, V) is the state of value head h, read and overwritten.
template <typename T>
void GatedDeltaRule(const DeltaRuleOf<T>& op, const SequenceSpan& span, std::int64_t h, Mat<T> o,
                    Mat<T> S) {
  const std::int64_t V = op.shape.value_dim;
  for (std::int64_t n = span.begin; n < span.begin + span.rows; ++n) {
    const DeltaTrace<T> trace = AdvanceState(op, n, h, S);
    for (std::int64_t j = 0; j < V; ++j) {
      o(n, h * V + j) = T(0);
      for (std::int64_t d = 0; d < op.shape.key_dim; ++d) {
        o(n, h * V + j) += S(d, j) * trace.step.q[d];
      }
    }
  }
}

// The gradients of a head; dq and dk are added to, because value heads share them.
template <typename T>
struct DeltaRuleGradient {
  Mat<T> dq, dk, dv, da, db;
};

// dx = scale (r dy - x r^3 sum(dy x)), the gradient of the norm of a head of q or k
template <typename T>
void AddNormGradient(const std::vector<T>& dy, T scale, T r, const T* x, T* dx_acc) {
  T dot = 0;
  for (std::size_t d = 0; d < dy.size(); ++d) dot += dy[d] * x[d];
  for (std::size_t d = 0; d < dy.size(); ++d) {
    dx_acc[d] += scale * (r * dy[d] - x[d] * r * r * r * dot);
  }
}

// From the last token to the first, with dS (K, V), the gradient of the state behind a token:
//   dS += q do^T;  dq = S do;  du = dS^T k;  dk = dS u;  dbeta = du.e;  dv = beta du
//   dk -= P dv;  dP = dS - k dv^T;  dg = <dP, P>;  dS = e^g dP
template <typename T>
void GatedDeltaRuleBackward(const DeltaRuleOf<T>& op, const SequenceSpan& span, std::int64_t h,
                            Mat<const T> d_o, const DeltaRuleGradient<T>& out) {
  const std::int64_t K = op.shape.key_dim;
  const std::int64_t V = op.shape.value_dim;
  const std::int64_t g = op.shape.key_head(h);
  std::vector<T> state(K * V);
  std::vector<DeltaTrace<T>> traces;
  for (std::int64_t n = span.begin; n < span.begin + span.rows; ++n) {
    traces.push_back(AdvanceState(op, n, h, Mat<T>{state.data(), K, V, V}));
  }
  std::vector<T> dS(K * V);
  for (std::int64_t n = span.begin + span.rows - 1; n >= span.begin; --n) {
    const auto& [step, P, error] = traces[n - span.begin];
    std::vector<T> dq(K), dk(K);
    T d_beta = 0;
    T dg = 0;
    for (std::int64_t j = 0; j < V; ++j) {
      const T gradient = d_o(n, h * V + j);
      const T u = step.beta * error[j];
      T du = 0;
      for (std::int64_t d = 0; d < K; ++d) {
        dS[d * V + j] += step.q[d] * gradient;
        dq[d] += (P[d * V + j] + step.k[d] * u) * gradient;
        du += dS[d * V + j] * step.k[d];
        dk[d] += dS[d * V + j] * u;
      }
      d_beta += du * error[j];
      const T dv = step.beta * du;
      out.dv(n, h * V + j) = dv;
      for (std::int64_t d = 0; d < K; ++d) {
        dk[d] -= P[d * V + j] * dv;
        const T dP = dS[d * V + j] - step.k[d] * dv;
        dg += dP * P[d * V + j];
        dS[d * V + j] = step.decay * dP;
      }
    }
    out.da(n, h) = dg * step.decay_slope;
    out.db(n, h) = d_beta * step.beta * (T(1) - step.beta);
    AddNormGradient(dq, T(1) / std::sqrt(static_cast<T>(K)), step.q_rstd, &op.q(n, g * K),
                    &out.dq(n, g * K));
    AddNormGradient(dk, T(1), step.k_rstd, &op.k(n, g * K), &out.dk(n, g * K));
  }
}

}  // namespace qlora::reference

#endif  // QLORA_BACKEND_REFERENCE_RECURRENT_H_
