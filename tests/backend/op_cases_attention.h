// Attention, AttentionBackward and Rope. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_ATTENTION_H_
#define QLORA_TESTS_BACKEND_OP_CASES_ATTENTION_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_attention.h"
#include "pass/pass_shape.h"

namespace qlora::testing_util {

// exact: with scales that are powers of two, so that it makes no difference in bfloat16 products
// whether q is rounded before or after it is scaled.
inline std::vector<AttentionCase> AttentionCases(bool exact) {
  const auto shape = [=](std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                         float softcap = 0, std::int64_t window = 0) {
    const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
    return AttentionShape{.heads = heads,
                          .kv_heads = kv_heads,
                          .head_dim = head_dim,
                          .scale = exact ? std::exp2(std::round(std::log2(scale))) : scale,
                          .softcap = softcap,
                          .window = window};
  };
  return {
      {"one_token", shape(1, 1, 4), Packed({1})},
      {"one_head", shape(1, 1, 16), Packed({9})},
      {"many_heads", shape(4, 4, 32), Packed({33})},
      {"gqa", shape(6, 2, 16), Packed({40})},
      {"mqa", shape(5, 1, 24), Packed({17})},
      {"wide_heads", shape(2, 1, 128), Packed({70})},
      {"head_dim_80", shape(2, 2, 80), Packed({19})},
      {"odd_head_dim", shape(3, 1, 10), Packed({13})},
      {"packed", shape(4, 2, 16), Packed({5, 1, 33, 12})},
      {"softcap", shape(4, 2, 16, 5.0f), Packed({21})},
      {"window", shape(4, 2, 16, 0, 7), Packed({30, 4})},
      {"window_of_one", shape(2, 1, 8, 0, 1), Packed({6})},
      {"window_softcap", shape(2, 1, 16, 3.0f, 5), Packed({18, 23})},
      {"longer_than_a_tile", shape(2, 1, 32), Packed({150})},
      {"window_past_a_tile", shape(2, 1, 32, 0, 70), Packed({160})},
      {"peaked", shape(2, 1, 16), Packed({24}), 5},
      {"decode", shape(4, 2, 32), {{0, 1, 0, 77}}},
      {"decode_window", shape(4, 2, 32, 0, 20), {{0, 1, 0, 77}}},
      {"chunk_after_cache", shape(4, 2, 16), {{0, 6, 0, 29}}},
      {"batched_decode", shape(2, 1, 16), {{0, 1, 0, 11}, {1, 1, 20, 5}, {2, 1, 30, 30}}},
      {"heads_split_unevenly", shape(14, 2, 16), Packed({37, 5})},
      {"heads_of_a_task", shape(32, 4, 16), Packed({33})},
      {"queries_split", shape(8, 4, 16), Packed({150})},
      {"group_unsplit", shape(32, 16, 16), Packed({131})},
      {"group_of_a_task", shape(16, 8, 16, 4.0f, 9), Packed({35, 3})},
      {"spans_out_of_order", shape(2, 1, 16), {{7, 5, 0, 5}, {0, 7, 5, 7}}},
  };
}

// Bounds of the errors of attention, from a first-order analysis in float64 of one span at a time.
//
// A score s = scale q.k has an error of at most e_s = gamma_K scale |q|.|k|; softcap does not
// amplify it. So p = exp(s - lse) has a relative error of at most rho = expm1(2 max e_s) + the
// error of exp. Products round p and ds to the compute type.
class AttentionErrors {
 public:
  AttentionErrors(const AttentionCase& c, double unit, double compute_unit, double store_unit)
      : c_(c), unit_(unit), compute_(compute_unit), store_(store_unit) {}

  // All operands in float64; d_o empty for the forward pass only.
  void Run(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& o, const Matrix& lse,
           const Matrix& d_o) {
    const auto zeros = [](const Matrix& m) { return Filled(DType::kF64, m.rows(), m.cols(), 0); };
    for (auto [bound, like] :
         {std::pair{&o_, &o}, {&lse_, &lse}, {&dq_, &q}, {&dk_, &k}, {&dv_, &v}})
      *bound = zeros(*like);
    const std::int64_t K = c_.shape.head_dim;
    const std::int64_t shared = c_.shape.heads / c_.shape.kv_heads;
    for (const AttentionSpan& span : c_.spans) {
      for (std::int64_t i = 0; i < span.q_rows; ++i) {
        const std::int64_t n = span.q_begin + i;
        const std::int64_t last = span.kv_rows - span.q_rows + i;
        const std::int64_t first =
            c_.shape.window > 0 ? std::max<std::int64_t>(0, last - c_.shape.window + 1) : 0;
        for (std::int64_t h = 0; h < c_.shape.heads; ++h) {
          Row row{n, span.kv_begin + first, last - first + 1, h * K, h / shared * K};
          AddRow(row, h, q, k, v, o, lse, d_o);
        }
      }
    }
  }

  const Matrix& o() const { return o_; }
  const Matrix& lse() const { return lse_; }
  const Matrix& dq() const { return dq_; }
  const Matrix& dk() const { return dk_; }
  const Matrix& dv() const { return dv_; }

 private:
  // Query row n of one head: its keys are rows [m, m + keys), its columns start at hq in q and o
  // and at hk in k and v.
  struct Row {
    std::int64_t n, m, keys, hq, hk;
  };

  void AddRow(const Row& row, std::int64_t h, const Matrix& q, const Matrix& k, const Matrix& v,
              const Matrix& o, const Matrix& lse, const Matrix& d_o) {
    const std::int64_t K = c_.shape.head_dim;
    const double cap = c_.shape.softcap;
    std::vector<double> score(row.keys);
    double worst = 0;  // largest e_s
    double size = std::abs(lse(row.n, h));
    for (std::int64_t j = 0; j < row.keys; ++j) {
      double dot = 0;
      double magnitude = 0;
      for (std::int64_t d = 0; d < K; ++d) {
        const double term = c_.shape.scale * q(row.n, row.hq + d) * k(row.m + j, row.hk + d);
        dot += term;
        magnitude += std::abs(term);
      }
      score[j] = cap == 0 ? dot : cap * std::tanh(dot / cap);
      size = std::max(size, std::abs(score[j]));
      worst = std::max(worst, Gamma(K + 4, unit_) * magnitude + kMath * unit_ * cap);
    }
    const double e_lse = worst + Gamma(row.keys + kMath, unit_) + kMath * unit_ * size;
    const double rho = std::expm1(worst + e_lse) + kMath * unit_ * (1 + size);
    lse_.Set(row.n, h, e_lse);

    const double e_sum = Gamma(row.keys + 4, unit_) + 1.1 * compute_;
    double delta = 0;  // |do| . |o|
    for (std::int64_t d = 0; d < K && !d_o.empty(); ++d) {
      delta += std::abs(d_o(row.n, row.hq + d) * o(row.n, row.hq + d));
    }
    for (std::int64_t j = 0; j < row.keys; ++j) {
      const double p = std::exp(score[j] - lse(row.n, h));
      const std::int64_t m = row.m + j;
      for (std::int64_t d = 0; d < K; ++d) {
        Add(o_, row.n, row.hq + d, p * (rho + e_sum) * std::abs(v(m, row.hk + d)));
      }
      if (d_o.empty()) continue;
      double dp = 0;          // |do| . |v|
      double difference = 0;  // do . (v - o)
      for (std::int64_t d = 0; d < K; ++d) {
        dp += std::abs(d_o(row.n, row.hq + d) * v(m, row.hk + d));
        difference += d_o(row.n, row.hq + d) * (v(m, row.hk + d) - o(row.n, row.hq + d));
      }
      // ds = p (dp - do . o) cap'; o may be recomputed instead of read, and is then not rounded.
      // cap' = 1 - (s / cap)^2 inherits twice the error of tanh.
      const double e_slope = cap == 0 ? 0 : 2 * (worst / cap + kMath * unit_);
      const double e_ds = p * (rho + Gamma(K + 6, unit_) + e_slope) * (dp + delta) +
                          p * store_ * delta + 1.1 * compute_ * p * std::abs(difference);
      const double e_dv = p * (rho + 1.1 * compute_ + Gamma(Queries() + 4, unit_));
      const double ds = p * (dp + delta) * Gamma(std::max(row.keys, Queries()) + 4, unit_);
      for (std::int64_t d = 0; d < K; ++d) {
        const double scaled = c_.shape.scale * (e_ds + ds);
        Add(dq_, row.n, row.hq + d, scaled * std::abs(k(m, row.hk + d)));
        Add(dk_, m, row.hk + d, scaled * std::abs(q(row.n, row.hq + d)));
        Add(dv_, m, row.hk + d, e_dv * std::abs(d_o(row.n, row.hq + d)));
      }
    }
  }

  // Terms in a sum over the queries of one key/value head.
  std::int64_t Queries() const { return c_.q_rows() * c_.shape.heads / c_.shape.kv_heads; }

  static void Add(Matrix& m, std::int64_t r, std::int64_t c, double value) {
    m.Set(r, c, m(r, c) + value);
  }

  // Roundings of one exp, log or tanh.
  static constexpr int kMath = 8;

  const AttentionCase& c_;
  double unit_, compute_, store_;
  Matrix o_, lse_, dq_, dk_, dv_;
};

TEST_P(OpTest, Attention) {
  std::uint64_t seed = 300;
  for (const AttentionCase& c : AttentionCases(precise() == DType::kBF16)) {
    SCOPED_TRACE(c.name);
    AttentionData data = MakeAttentionData(c, GetParam().precision, precise(), ++seed);
    AttentionData expected = data.In(DType::kF64);
    backend().Reserve(LimitsOf(c));
    data.Forward(backend(), c);
    expected.Forward(reference(), c);
    AttentionErrors errors(c, UnitRoundoff(wide()), compute_unit(), UnitRoundoff(activation()));
    errors.Run(expected.q, expected.k, expected.v, expected.o, expected.lse, Matrix());
    ExpectWithin(data.o, expected.o, errors.o(), "o");
    ExpectWithin(data.lse, expected.lse, errors.lse(), "lse");
  }
}

TEST_P(OpTest, AttentionBackward) {
  std::uint64_t seed = 400;
  for (const AttentionCase& c : AttentionCases(precise() == DType::kBF16)) {
    if (!c.covers_all_rows()) continue;
    SCOPED_TRACE(c.name);
    AttentionData data = MakeAttentionData(c, GetParam().precision, precise(), ++seed);
    AttentionData expected = data.In(DType::kF64);
    expected.Forward(reference(), c);
    data.o = Convert(expected.o, activation());
    data.lse = Convert(expected.lse, wide());
    expected.o = Convert(data.o, DType::kF64);
    expected.lse = Convert(data.lse, DType::kF64);
    backend().Reserve(LimitsOf(c));
    data.Backward(backend(), c);
    expected.Backward(reference(), c);
    AttentionErrors errors(c, UnitRoundoff(wide()), compute_unit(), UnitRoundoff(activation()));
    errors.Run(expected.q, expected.k, expected.v, expected.o, expected.lse, expected.d_o);
    ExpectWithin(data.dq, expected.dq, errors.dq(), "dq");
    ExpectWithin(data.dk, expected.dk, errors.dk(), "dk");
    ExpectWithin(data.dv, expected.dv, errors.dv(), "dv");
  }
}

// Sequences packed into one call do not see each other: the bits are those of separate calls.
TEST_P(OpTest, PackedAttentionEqualsSeparateCalls) {
  for (const AttentionCase& c : AttentionCases(precise() == DType::kBF16)) {
    if (c.spans.size() < 2) continue;
    SCOPED_TRACE(c.name);
    AttentionData packed = MakeAttentionData(c, GetParam().precision, precise(), 500);
    AttentionData separate = packed;
    backend().Reserve(LimitsOf(c));
    packed.Forward(backend(), c);
    for (const AttentionSpan& span : c.spans) {
      AttentionCase one = c;
      one.spans = {span};
      separate.Forward(backend(), one);
    }
    ExpectEqual(packed.o, separate.o, "o");
    ExpectEqual(packed.lse, separate.lse, "lse");
    if (!c.covers_all_rows()) continue;
    packed.Backward(backend(), c);
    for (const AttentionSpan& span : c.spans) {
      AttentionCase one = c;
      one.spans = {{0, span.q_rows, 0, span.kv_rows}};
      backend().Run(ops::AttentionBackward{c.shape, one.spans,
                                           Rows(separate.d_o.view(), span.q_begin, span.q_rows),
                                           Rows(separate.q.view(), span.q_begin, span.q_rows),
                                           Rows(separate.k.view(), span.kv_begin, span.kv_rows),
                                           Rows(separate.v.view(), span.kv_begin, span.kv_rows),
                                           Rows(separate.o.view(), span.q_begin, span.q_rows),
                                           Rows(separate.lse.view(), span.q_begin, span.q_rows),
                                           Rows(separate.dq.view(), span.q_begin, span.q_rows),
                                           Rows(separate.dk.view(), span.kv_begin, span.kv_rows),
                                           Rows(separate.dv.view(), span.kv_begin, span.kv_rows)});
    }
    ExpectEqual(packed.dq, separate.dq, "dq");
    ExpectEqual(packed.dk, separate.dk, "dk");
    ExpectEqual(packed.dv, separate.dv, "dv");
  }
}

struct RopeCase {
  std::string name;
  std::int64_t rows, heads, head_dim, rotated;  // rotated: K_rot
  bool interleaved = false;
};

TEST_P(OpTest, Rope) {
  std::uint64_t seed = 600;
  for (const RopeCase& c :
       {RopeCase{"one", 1, 1, 2, 2}, RopeCase{"full", 19, 3, 64, 64},
        RopeCase{"odd_half", 7, 2, 10, 10}, RopeCase{"partial", 9, 4, 80, 32},
        RopeCase{"none_rotated", 3, 2, 8, 0}, RopeCase{"neighbours", 19, 3, 64, 64, true},
        RopeCase{"neighbours_odd_half", 7, 2, 10, 10, true},
        RopeCase{"neighbours_partial", 9, 4, 40, 20, true}}) {
    for (const bool inverse : {false, true}) {
      for (const DType type : {activation(), wide()}) {
        SCOPED_TRACE(c.name);
        Random random(++seed);
        Matrix cos(wide(), 50, c.rotated / 2);
        Matrix sin(wide(), 50, c.rotated / 2);
        for (std::int64_t p = 0; p < 50; ++p) {
          for (std::int64_t i = 0; i < c.rotated / 2; ++i) {
            const double angle = static_cast<double>(p) / std::pow(1e4, 2.0 * i / c.rotated);
            cos.Set(p, i, std::cos(angle));
            sin.Set(p, i, std::sin(angle));
          }
        }
        std::vector<std::int32_t> positions;
        for (std::int64_t n = 0; n < c.rows; ++n) {
          positions.push_back(static_cast<std::int32_t>(random.Below(50)));
        }
        Matrix x = random.Normal(type, c.rows, c.heads * c.head_dim, 1);
        Matrix expected = Convert(x, DType::kF64);
        Matrix bound = Abs(x);  // |x1 cos| + |x2 sin| <= |x1| + |x2|
        for (std::int64_t n = 0; n < c.rows; ++n) {
          for (std::int64_t col = 0; col < x.cols(); ++col) {
            const std::int64_t d = col % c.head_dim;
            const bool pair = d < c.rotated;
            const std::int64_t apart = c.interleaved ? 1 : c.rotated / 2;
            const bool is_first = c.interleaved ? d % 2 == 0 : d < c.rotated / 2;
            const std::int64_t other = is_first ? col + apart : col - apart;
            const double size = pair ? std::abs(x(n, col)) + std::abs(x(n, other)) : 0;
            bound.Set(n, col, Gamma(3, UnitRoundoff(wide())) * size);
          }
        }
        Matrix cos64 = Convert(cos, DType::kF64);
        Matrix sin64 = Convert(sin, DType::kF64);
        backend().Reserve({.rows = c.rows, .heads = c.heads, .head_dim = c.head_dim});
        const RopeTable table{cos.view(), sin.view(), c.interleaved};
        const RopeTable table64{cos64.view(), sin64.view(), c.interleaved};
        backend().Run(ops::Rope{positions, table, c.heads, inverse, x.view()});
        reference().Run(ops::Rope{positions, table64, c.heads, inverse, expected.view()});
        ExpectWithin(x, expected, bound, "x");
      }
    }
  }
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_ATTENTION_H_
