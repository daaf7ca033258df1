// The checks of the ops of recurrent_ops.h.
#include <fmt/format.h>

#include "backend/op_checks.h"

namespace qlora {
namespace {

bool Meet(std::int64_t a, std::int64_t a_count, std::int64_t b, std::int64_t b_count) {
  return a < b + b_count && b < a + a_count;
}

// Every row is in one span: outputs are overwritten span by span, so a row in no span would keep
// old values. states: the number of states that the op was given; two spans do not share one.
void CheckSpans(const Checker& check, std::span<const SequenceSpan> spans, std::int64_t rows,
                std::int64_t states) {
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const SequenceSpan& s = spans[i];
    check.AtLeast("begin of a span", 0, s.begin);
    check.AtLeast("rows of a span", 1, s.rows);
    check.AtLeast("rows of x", s.begin + s.rows, rows);
    covered += s.rows;
    if (states > 0) {
      check.AtLeast("state of a span", 0, s.state);
      check.AtLeast("number of states", s.state + 1, states);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (Meet(s.begin, s.rows, spans[j].begin, spans[j].rows)) {
        check.Fail("spans", "every row in one span",
                   fmt::format("spans {} and {} share rows", j, i));
      }
      if (states > 0 && s.state == spans[j].state) {
        check.Fail("spans", "a state for each span",
                   fmt::format("state {} of spans {} and {}", s.state, j, i));
      }
    }
  }
  check.Equal("rows in spans", rows, covered);
}

// x, weight and bias of a convolution.
template <typename Op>
void CheckConv(Checker& check, const Op& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.AtLeast("taps", 1, op.weight.cols);
  check.AtLeast("most taps", op.weight.cols, kMostTaps);
  check.Wide("weight", op.weight, op.x.cols, op.weight.cols);
  if (!op.bias.empty()) check.Wide("bias", op.bias, 1, op.x.cols);
}

// The inputs of the delta rule.
template <typename Op>
void CheckDeltaRule(Checker& check, const Op& op) {
  const DeltaRuleShape& s = op.shape;
  check.AtLeast("heads", 1, s.heads);
  check.AtLeast("key_heads", 1, s.key_heads);
  check.AtLeast("key_dim", 1, s.key_dim);
  check.AtLeast("value_dim", 1, s.value_dim);
  check.Equal("heads modulo key_heads", 0, s.heads % s.key_heads);
  check.Activation("q", op.q, op.q.rows, s.key_heads * s.key_dim);
  check.Activation("k", op.k, op.q.rows, s.key_heads * s.key_dim);
  check.Activation("v", op.v, op.q.rows, s.heads * s.value_dim);
  check.Activation("a", op.a, op.q.rows, s.heads);
  check.Activation("b", op.b, op.q.rows, s.heads);
  check.Wide("rate", op.rate, 1, s.heads);
  check.Wide("dt_bias", op.dt_bias, 1, s.heads);
}

template <typename Op>
void CheckApartFromInputs(const Checker& check, const Op& op, const char* name,
                          const ConstMatrixView& out) {
  check.Apart(name, out, "q", op.q);
  check.Apart(name, out, "k", op.k);
  check.Apart(name, out, "v", op.v);
  check.Apart(name, out, "a", op.a);
  check.Apart(name, out, "b", op.b);
}

}  // namespace

void Check(Checker& check, const ops::CausalConv& op) {
  CheckConv(check, op);
  check.Activation("y", op.y, op.x.rows, op.x.cols);
  check.Apart("y", op.y, "x", op.x);
  const std::int64_t kept = op.weight.cols - 1;
  std::int64_t states = 0;
  if (!op.window_inout.empty()) {
    // With one tap there is nothing to keep.
    check.AtLeast("taps of a window", 2, op.weight.cols);
    states = op.window_inout.rows / kept;
    check.Activation("window_inout", op.window_inout, states * kept, op.x.cols);
    if (op.window_inout.dtype != op.x.dtype) {
      check.Fail("window_inout", NameOf(op.x.dtype), NameOf(op.window_inout.dtype));
    }
    check.Apart("window_inout", op.window_inout, "x", op.x);
    check.Apart("window_inout", op.window_inout, "y", op.y);
  }
  CheckSpans(check, op.spans, op.x.rows, states);
}

void Check(Checker& check, const ops::CausalConvBackward& op) {
  CheckConv(check, op);
  check.Activation("dy", op.dy, op.x.rows, op.x.cols);
  check.Activation("dx", op.dx, op.x.rows, op.x.cols);
  check.Apart("dx", op.dx, "dy", op.dy);
  check.Apart("dx", op.dx, "x", op.x);
  CheckSpans(check, op.spans, op.x.rows, 0);
}

void Check(Checker& check, const ops::GatedDeltaRule& op) {
  CheckDeltaRule(check, op);
  check.Activation("o", op.o, op.q.rows, op.v.cols);
  CheckApartFromInputs(check, op, "o", op.o);
  const std::int64_t state_rows = op.shape.heads * op.shape.key_dim;
  const std::int64_t states = op.state_inout.rows / state_rows;
  if (!op.state_inout.empty()) {
    check.Wide("state_inout", op.state_inout, states * state_rows, op.shape.value_dim);
    CheckApartFromInputs(check, op, "state_inout", op.state_inout);
    check.Apart("state_inout", op.state_inout, "o", op.o);
  }
  CheckSpans(check, op.spans, op.q.rows, states);
}

void Check(Checker& check, const ops::GatedDeltaRuleBackward& op) {
  CheckDeltaRule(check, op);
  check.Activation("d_o", op.d_o, op.q.rows, op.v.cols);
  const MatrixView* outputs[] = {&op.dq, &op.dk, &op.dv, &op.da, &op.db};
  const ConstMatrixView* like[] = {&op.q, &op.k, &op.v, &op.a, &op.b};
  const char* names[] = {"dq", "dk", "dv", "da", "db"};
  for (int i = 0; i < 5; ++i) {
    check.Activation(names[i], *outputs[i], like[i]->rows, like[i]->cols);
    CheckApartFromInputs(check, op, names[i], *outputs[i]);
    check.Apart(names[i], *outputs[i], "d_o", op.d_o);
    for (int j = 0; j < i; ++j) check.Apart(names[i], *outputs[i], names[j], *outputs[j]);
  }
  CheckSpans(check, op.spans, op.q.rows, 0);
}

}  // namespace qlora
