// The operands of Attention and AttentionBackward.
#ifndef QLORA_TESTS_BACKEND_TEST_ATTENTION_H_
#define QLORA_TESTS_BACKEND_TEST_ATTENTION_H_

#include <algorithm>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/test_util.h"
#include "pass/pass_shape.h"

namespace qlora::testing_util {

struct AttentionCase {
  std::string name;
  AttentionShape shape;
  std::vector<AttentionSpan> spans;
  double deviation = 1;  // of q and k

  std::int64_t q_rows() const {
    std::int64_t rows = 0;
    for (const AttentionSpan& s : spans) rows = std::max(rows, s.q_begin + s.q_rows);
    return rows;
  }
  std::int64_t kv_rows() const {
    std::int64_t rows = 0;
    for (const AttentionSpan& s : spans) rows = std::max(rows, s.kv_begin + s.kv_rows);
    return rows;
  }
  // Whether every row is in one span, as the backward pass needs.
  bool covers_all_rows() const {
    std::int64_t q = 0;
    std::int64_t kv = 0;
    for (const AttentionSpan& s : spans) {
      q += s.q_rows;
      kv += s.kv_rows;
    }
    return q == q_rows() && kv == kv_rows();
  }
};

// Sequences one after the other, all keys are new.
inline std::vector<AttentionSpan> Packed(const std::vector<std::int64_t>& lengths) {
  std::vector<AttentionSpan> spans;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    spans.push_back({begin, length, begin, length});
    begin += length;
  }
  return spans;
}

// All operands of Attention and AttentionBackward.
struct AttentionData {
  Matrix q, k, v, o, lse, d_o, dq, dk, dv;

  AttentionData In(DType dtype) const {
    AttentionData copy = *this;
    for (Matrix* m :
         {&copy.q, &copy.k, &copy.v, &copy.o, &copy.lse, &copy.d_o, &copy.dq, &copy.dk, &copy.dv}) {
      *m = Convert(*m, dtype);
    }
    return copy;
  }
  void Forward(Backend& backend, const AttentionCase& c) {
    backend.Run(
        ops::Attention{c.shape, c.spans, q.view(), k.view(), v.view(), o.view(), lse.view()});
  }
  void Backward(Backend& backend, const AttentionCase& c) {
    backend.Run(ops::AttentionBackward{c.shape, c.spans, d_o.view(), q.view(), k.view(), v.view(),
                                       o.view(), lse.view(), dq.view(), dk.view(), dv.view()});
  }
};

// Inputs are random, outputs poisoned.
inline AttentionData MakeAttentionData(const AttentionCase& c, Precision precision, DType precise,
                                       std::uint64_t seed) {
  Random random(seed);
  const DType type = precision.activation;
  const std::int64_t q_cols = c.shape.heads * c.shape.head_dim;
  const std::int64_t kv_cols = c.shape.kv_heads * c.shape.head_dim;
  AttentionData data;
  data.q = random.Normal(type, c.q_rows(), q_cols, c.deviation, precise);
  data.k = random.Normal(type, c.kv_rows(), kv_cols, c.deviation, precise);
  data.v = random.Normal(type, c.kv_rows(), kv_cols, 1, precise);
  data.d_o = random.Normal(type, c.q_rows(), q_cols, 1, precise);
  data.o = Poisoned(data.q);
  data.lse = Matrix(precision.wide, c.q_rows(), c.shape.heads);
  data.dq = Poisoned(data.q);
  data.dk = Poisoned(data.k);
  data.dv = Poisoned(data.v);
  return data;
}

inline BackendLimits LimitsOf(const AttentionCase& c) {
  return {.rows = std::max(c.q_rows(), c.kv_rows()),
          .heads = c.shape.heads,
          .kv_heads = c.shape.kv_heads,
          .head_dim = c.shape.head_dim,
          .gradient_rows = std::max(c.q_rows(), c.kv_rows()),
          .gradient_length = c.kv_rows()};
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_TEST_ATTENTION_H_
