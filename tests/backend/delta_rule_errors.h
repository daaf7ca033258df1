// Bounds of the errors of GatedDeltaRule and its gradient, for any way to compute them: by tokens
// or by chunks of at most kLongestChunk.
#ifndef QLORA_TESTS_BACKEND_DELTA_RULE_ERRORS_H_
#define QLORA_TESTS_BACKEND_DELTA_RULE_ERRORS_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/test_recurrent.h"

namespace qlora::testing_util {

// A first-order analysis in norms, of float64 operands. With |.| the length of a vector, and S the
// state (K, V) of a value head:
//
// What a token adds wrongly to the state is no longer than
//   local = unit * (c (|v| + size) + m (1 + |g|) e^g size before),  size = e^g size before + |u|
// where c counts the roundings of sums over K, V and a chunk, and m those of exp. size bounds the
// length of S and also the sums of absolute values in a chunk. The errors do not grow from token to
// token, because I - beta k k^T does not lengthen anything while |k| <= 1 and beta <= 1:
//   error of S = e^g (error before) + local;   error of o = |q| (error of S + unit c size)
// The gradient dS of the state goes the same way from the last token to the first, with do in the
// place of v. Each gradient is a product of two such factors: the error of one times the size of
// the other, and a rounding.
class DeltaRuleErrors {
 public:
  DeltaRuleErrors(const DeltaCase& c, double unit) : c_(c), unit_(unit) {}

  // data: in float64, before the pass.
  void Forward(const DeltaData& data, bool stateful) {
    o_ = Zeros(data.v);
    state_ = Zeros(data.state);
    rows_.assign(c_.shape.heads, std::vector<Token>(data.q.rows()));
    for (const SequenceSpan& span : c_.spans) {
      for (std::int64_t h = 0; h < c_.shape.heads; ++h) ForwardHead(data, span, h, stateful);
    }
  }
  // After Forward without states.
  void Backward(const DeltaData& data) {
    for (auto [bound, like] : {std::pair{&dq_, &data.q},
                               {&dk_, &data.k},
                               {&dv_, &data.v},
                               {&da_, &data.a},
                               {&db_, &data.b}}) {
      *bound = Zeros(*like);
    }
    for (const SequenceSpan& span : c_.spans) {
      for (std::int64_t h = 0; h < c_.shape.heads; ++h) BackwardHead(data, span, h);
    }
  }

  const Matrix& o() const { return o_; }
  const Matrix& state() const { return state_; }
  const Matrix& dq() const { return dq_; }
  const Matrix& dk() const { return dk_; }
  const Matrix& dv() const { return dv_; }
  const Matrix& da() const { return da_; }
  const Matrix& db() const { return db_; }

 private:
  using Vector = std::vector<double>;

  struct Token {
    Vector q, k, u, e, P, S;       // e = v - P^T k; P and S are (K, V)
    double q_rstd, k_rstd;         // of the norms
    double g, slope, decay, beta;  // slope = dg / da
    double size, error;            // of the state behind the token
  };

  static Matrix Zeros(const Matrix& m) { return Filled(DType::kF64, m.rows(), m.cols(), 0); }
  static double Length(const Vector& x) {
    double sum = 0;
    for (const double value : x) sum += value * value;
    return std::sqrt(sum);
  }
  static Vector Part(const Matrix& m, std::int64_t n, std::int64_t first, std::int64_t count) {
    Vector out;
    for (std::int64_t i = 0; i < count; ++i) out.push_back(m(n, first + i));
    return out;
  }
  static void AddRow(Matrix& m, std::int64_t n, std::int64_t first, std::int64_t count,
                     double bound) {
    for (std::int64_t i = first; i < first + count; ++i) m.Set(n, i, m(n, i) + bound);
  }

  // Roundings of a value that sums over K, over V and over a chunk go into.
  double c() const {
    return static_cast<double>(c_.shape.key_dim + c_.shape.value_dim + kLongestChunk + 40);
  }
  std::int64_t KeyOf(std::int64_t h) const { return c_.shape.key_head(h) * c_.shape.key_dim; }

  // x / |x|, scaled.
  static double Normalize(Vector& x, double scale) {
    const double rstd = 1 / std::sqrt(std::pow(Length(x), 2) + kDeltaRuleEpsilon);
    for (double& value : x) value *= scale * rstd;
    return rstd;
  }

  void ForwardHead(const DeltaData& data, const SequenceSpan& span, std::int64_t h, bool stateful) {
    const auto& [heads, key_heads, K, V, tiled] = c_.shape;
    Vector S(K * V);
    const std::int64_t first = (span.state * heads + h) * K;
    for (std::int64_t i = 0; stateful && i < K * V; ++i) S[i] = data.state(first + i / V, i % V);
    double size = Length(S);
    double error = 0;
    for (std::int64_t n = span.begin; n < span.begin + span.rows; ++n) {
      Token& t = rows_[h][n];
      t.q = Part(data.q, n, KeyOf(h), K);
      t.k = Part(data.k, n, KeyOf(h), K);
      t.q_rstd = Normalize(t.q, 1 / std::sqrt(static_cast<double>(K)));
      t.k_rstd = Normalize(t.k, 1);
      const double x = data.a(n, h) + data.dt_bias(0, h);
      t.g = data.rate(0, h) * (std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
      t.slope = data.rate(0, h) / (1 + std::exp(-x));
      t.decay = std::exp(t.g);
      t.beta = 1 / (1 + std::exp(-data.b(n, h)));
      const Vector v = Part(data.v, n, h * V, V);
      t.P = S;
      for (double& value : t.P) value *= t.decay;
      t.e = v;
      for (std::int64_t i = 0; i < K * V; ++i) t.e[i % V] -= t.P[i] * t.k[i / V];
      t.u = t.e;
      for (double& value : t.u) value *= t.beta;
      S = t.P;
      for (std::int64_t i = 0; i < K * V; ++i) S[i] += t.k[i / V] * t.u[i % V];
      t.S = S;

      const double before = t.decay * size;
      size = before + Length(t.u);
      const double local =
          unit_ * (c() * (Length(v) + before + size) + kExp * (1 + std::abs(t.g)) * before);
      error = t.decay * error + local;
      t.size = size;
      t.error = error;
      AddRow(o_, n, h * V, V, Length(t.q) * (error + unit_ * c() * size));
    }
    for (std::int64_t i = 0; stateful && i < K; ++i) AddRow(state_, first + i, 0, V, error);
  }

  void BackwardHead(const DeltaData& data, const SequenceSpan& span, std::int64_t h) {
    const auto& [heads, key_heads, K, V, tiled] = c_.shape;
    Vector dS(K * V);
    double size = 0;   // of dS, and of sums of absolute values
    double error = 0;  // of dS
    double gates = 0;  // errors of dg of the tokens from here on, which are summed up
    double state = 0;  // the largest error of <dS, S> at the end of a chunk
    for (std::int64_t n = span.begin + span.rows - 1; n >= span.begin; --n) {
      const Token& t = rows_[h][n];
      const Vector d_o = Part(data.d_o, n, h * V, V);
      const double q_do = Length(t.q) * Length(d_o);
      state = std::max(state, error * t.size + size * t.error +
                                  unit_ * (c() + static_cast<double>(K * V)) * size * t.size);
      for (std::int64_t i = 0; i < K * V; ++i) dS[i] += t.q[i / V] * d_o[i % V];
      size += q_do;
      error += unit_ * c() * q_do;
      Vector du(V), dq(K), dk(K);
      for (std::int64_t i = 0; i < K * V; ++i) {
        du[i % V] += dS[i] * t.k[i / V];
        dq[i / V] += t.S[i] * d_o[i % V];
      }
      for (std::int64_t i = 0; i < K * V; ++i) {
        dk[i / V] += dS[i] * t.u[i % V] - t.P[i] * t.beta * du[i % V];
      }
      const double u = Length(t.u);
      const double dv = t.beta * Length(du);
      const double e_du = error + unit_ * c() * (size + dv);
      const double e_dv = t.beta * e_du;
      const double e_dq = t.error * Length(d_o) + unit_ * c() * t.size * Length(d_o);
      const double product = size * u + t.size * dv;
      const double e_dk =
          error * u + size * t.error + t.error * dv + t.size * e_dv + unit_ * c() * product;
      AddRow(dv_, n, h * V, V, e_dv);
      AddNormBound(dq_, n, h, t.q_rstd / std::sqrt(static_cast<double>(K)), e_dq, Length(dq));
      AddNormBound(dk_, n, h, t.k_rstd, e_dk, Length(dk));

      const double v = Length(Part(data.v, n, h * V, V));
      const double e_beta = e_du * (Length(t.e) + v + 2 * t.size) + Length(du) * t.error +
                            unit_ * c() * Length(du) * (v + 2 * t.size);
      AddRow(db_, n, h, 1, t.beta * (1 - t.beta) * e_beta + unit_ * kExp * Length(du) * v);

      const double decayed = size + dv;
      Vector dP = dS;
      for (std::int64_t i = 0; i < K * V; ++i) dP[i] -= t.k[i / V] * t.beta * du[i % V];
      double dg = 0;
      for (std::int64_t i = 0; i < K * V; ++i) dg += dP[i] * t.P[i];
      gates += e_dq * Length(t.q) + e_dk + unit_ * c() * (q_do * t.size + product) +
               unit_ * kExp * (1 + std::abs(t.g)) * decayed * t.size;
      AddRow(
          da_, n, h, 1,
          std::abs(t.slope) * (gates + state + unit_ * kExp * (1 + std::abs(t.g)) * std::abs(dg)));
      dS = dP;
      for (double& value : dS) value *= t.decay;
      error = t.decay * (error + unit_ * (c() + kExp * (1 + std::abs(t.g))) * decayed);
      size = t.decay * decayed;
    }
  }

  // dx = r dy - x r^3 sum(dy x) is no longer than 2 r |dy|; r itself has the roundings of a sum.
  void AddNormBound(Matrix& m, std::int64_t n, std::int64_t h, double r, double error,
                    double length) {
    AddRow(m, n, KeyOf(h), c_.shape.key_dim, 2 * r * (error + 2 * unit_ * c() * length));
  }

  static constexpr std::int64_t kLongestChunk = 64;
  static constexpr double kExp = 16;  // roundings of exp, and of its argument for its size

  const DeltaCase& c_;
  double unit_;
  std::vector<std::vector<Token>> rows_;
  Matrix o_, state_, dq_, dk_, dv_, da_, db_;
};

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_DELTA_RULE_ERRORS_H_
