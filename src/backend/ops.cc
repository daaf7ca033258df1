#include "backend/ops.h"

#include <fmt/format.h>

#include "backend/op_checks.h"
#include "quant/dynamic_map.h"

namespace qlora {

namespace {

// A span may have fewer queries than keys, as with a cache, and never more: each query is at the
// position of one of the keys.
void CheckAttention(Checker& check, const AttentionShape& shape,
                    std::span<const AttentionSpan> spans, ConstMatrixView q, ConstMatrixView k,
                    ConstMatrixView v) {
  check.AtLeast("heads", 1, shape.heads);
  check.AtLeast("kv_heads", 1, shape.kv_heads);
  check.AtLeast("head_dim", 1, shape.head_dim);
  check.AtLeast("window", 0, shape.window);
  check.Equal("heads modulo kv_heads", 0, shape.heads % shape.kv_heads);
  check.Activation("q", q, q.rows, shape.heads * shape.head_dim);
  check.Activation("k", k, k.rows, shape.kv_heads * shape.head_dim);
  check.Activation("v", v, k.rows, shape.kv_heads * shape.head_dim);
  for (const AttentionSpan& s : spans) {
    check.AtLeast("q_begin of a span", 0, s.q_begin);
    check.AtLeast("q_rows of a span", 0, s.q_rows);
    check.AtLeast("kv_begin of a span", 0, s.kv_begin);
    check.AtLeast("kv_rows of a span", s.q_rows, s.kv_rows);
    check.AtLeast("rows of q", s.q_begin + s.q_rows, q.rows);
    check.AtLeast("rows of k", s.kv_begin + s.kv_rows, k.rows);
  }
}

// True when [a, a + a_count) and [b, b + b_count) share a row.
bool Intersect(std::int64_t a, std::int64_t a_count, std::int64_t b, std::int64_t b_count) {
  return a < b + b_count && b < a + a_count && a_count > 0 && b_count > 0;
}

// ---- One check for each op, in the order of ops.h; others are in linear_checks.cc,
// expert_checks.cc and recurrent_checks.cc.

// The first operand that decides a size is taken at its own size, and all others are compared with
// it. Element-wise ops may write over an operand, where each element is read before it is written;
// products and reductions may not.
void Check(Checker& check, const ops::Embed& op) {
  check.Activation("y", op.y, op.ids.size, op.table.cols());
  CheckWeight(check, "table", op.table, op.table.cols());
  check.Apart("y", op.y, "table", op.table.dense);
}

void Check(Checker& check, const ops::EmbedBackward& op) {
  check.Wide("dy", op.dy, op.ids.size, op.d_table_acc.cols);
  check.Wide("d_table_acc", op.d_table_acc, op.d_table_acc.rows, op.d_table_acc.cols);
  check.Apart("d_table_acc", op.d_table_acc, "dy", op.dy);
}

void Check(Checker& check, const ops::RmsNorm& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Wide("weight", op.weight, 1, op.x.cols);
  check.Activation("y", op.y, op.x.rows, op.x.cols);
  check.Wide("rstd", op.rstd, 1, op.x.rows);
  check.Apart("y", op.y, "x", op.x);
  check.Apart("y", op.y, "weight", op.weight);
  check.Apart("rstd", op.rstd, "x", op.x);
}

void Check(Checker& check, const ops::RmsNormBackward& op) {
  check.Activation("dy", op.dy, op.x.rows, op.x.cols);
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Wide("weight", op.weight, 1, op.x.cols);
  check.Wide("rstd", op.rstd, 1, op.x.rows);
  check.Activation("dx", op.dx, op.x.rows, op.x.cols);
  // The sums over a row are complete before the first element of the row is written.
  check.ApartOrSame("dx", op.dx, "dy", op.dy);
  check.Apart("dx", op.dx, "x", op.x);
  check.Apart("dx", op.dx, "rstd", op.rstd);
}

void Check(Checker& check, const ops::Rope& op) {
  check.AtLeast("heads", 1, op.heads);
  check.Activation("x_inout", op.x_inout, op.positions.size, op.x_inout.cols);
  check.Equal("columns of x_inout modulo heads", 0, op.x_inout.cols % op.heads);
  check.Wide("cos", op.table.cos, op.table.cos.rows, op.table.cos.cols);
  check.Wide("sin", op.table.sin, op.table.cos.rows, op.table.cos.cols);
  // A table may turn only the first dims of a head.
  check.AtLeast("head_dim", 2 * op.table.cos.cols, op.x_inout.cols / op.heads);
}

void Check(Checker& check, const ops::Attention& op) {
  CheckAttention(check, op.shape, op.spans, op.q, op.k, op.v);
  check.Activation("o", op.o, op.q.rows, op.q.cols);
  check.Wide("lse", op.lse, op.q.rows, op.shape.heads);
  check.Apart("o", op.o, "q", op.q);
  check.Apart("o", op.o, "k", op.k);
  check.Apart("o", op.o, "v", op.v);
}

// Every row of q and of k belongs to exactly one span: dq, dk and dv are overwritten row by row, so
// a row in no span would keep old values, and a row in two would lose one gradient. Quadratic in
// the number of sequences of a batch, which is small next to the work of the op.
void CheckCover(Checker& check, std::span<const AttentionSpan> spans, std::int64_t q_total,
                std::int64_t kv_total) {
  std::int64_t q_rows = 0;
  std::int64_t kv_rows = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const AttentionSpan& s = spans[i];
    q_rows += s.q_rows;
    kv_rows += s.kv_rows;
    for (std::size_t j = 0; j < i; ++j) {
      const AttentionSpan& t = spans[j];
      if (Intersect(s.q_begin, s.q_rows, t.q_begin, t.q_rows) ||
          Intersect(s.kv_begin, s.kv_rows, t.kv_begin, t.kv_rows)) {
        check.Fail("spans", "every row in one span",
                   fmt::format("spans {} and {} share rows", j, i));
      }
    }
  }
  check.Equal("rows of q in spans", q_total, q_rows);
  check.Equal("rows of k in spans", kv_total, kv_rows);
}

void Check(Checker& check, const ops::AttentionBackward& op) {
  CheckAttention(check, op.shape, op.spans, op.q, op.k, op.v);
  CheckCover(check, op.spans, op.q.rows, op.k.rows);
  check.Activation("d_o", op.d_o, op.q.rows, op.q.cols);
  check.Activation("o", op.o, op.q.rows, op.q.cols);
  check.Wide("lse", op.lse, op.q.rows, op.shape.heads);
  // dq, dk and dv have the shapes of q, k and v, which follow d_o in the list of inputs.
  const MatrixView* outputs[] = {&op.dq, &op.dk, &op.dv};
  const ConstMatrixView* inputs[] = {&op.d_o, &op.q, &op.k, &op.v, &op.o};
  const char* output_names[] = {"dq", "dk", "dv"};
  const char* input_names[] = {"d_o", "q", "k", "v", "o"};
  for (int i = 0; i < 3; ++i) {
    const ConstMatrixView& like = *inputs[i + 1];
    check.Activation(output_names[i], *outputs[i], like.rows, like.cols);
    for (int j = 0; j < 5; ++j) {
      check.Apart(output_names[i], *outputs[i], input_names[j], *inputs[j]);
    }
  }
  check.Apart("dk", op.dk, "dq", op.dq);
  check.Apart("dv", op.dv, "dq", op.dq);
  check.Apart("dv", op.dv, "dk", op.dk);
}

void Check(Checker& check, const ops::AttentionSinks& op) {
  const std::int64_t heads = op.sinks.cols;
  check.AtLeast("heads", 1, heads);
  check.Wide("sinks", op.sinks, 1, heads);
  check.Wide("lse_inout", op.lse_inout, op.o_inout.rows, heads);
  check.Activation("o_inout", op.o_inout, op.o_inout.rows, op.o_inout.cols);
  check.Equal("columns of o_inout modulo heads", 0, op.o_inout.cols % heads);
  check.Apart("lse_inout", op.lse_inout, "sinks", op.sinks);
  check.Apart("lse_inout", op.lse_inout, "o_inout", op.o_inout);
  check.Apart("o_inout", op.o_inout, "sinks", op.sinks);
}

void Check(Checker& check, const ops::GatedActivation& op) {
  check.Activation("gate", op.gate, op.gate.rows, op.gate.cols);
  check.Activation("up", op.up, op.gate.rows, op.gate.cols);
  check.Activation("y", op.y, op.gate.rows, op.gate.cols);
  check.ApartOrSame("y", op.y, "gate", op.gate);
  check.ApartOrSame("y", op.y, "up", op.up);
}

void Check(Checker& check, const ops::GatedActivationBackward& op) {
  check.Activation("dy", op.dy, op.gate.rows, op.gate.cols);
  check.Activation("gate", op.gate, op.gate.rows, op.gate.cols);
  check.Activation("up", op.up, op.gate.rows, op.gate.cols);
  check.Activation("d_gate", op.d_gate, op.gate.rows, op.gate.cols);
  check.Activation("d_up", op.d_up, op.gate.rows, op.gate.cols);
  // The backward pass of a layer writes the gradients over gate and up.
  check.ApartOrSame("d_gate", op.d_gate, "gate", op.gate);
  check.Apart("d_gate", op.d_gate, "up", op.up);
  check.Apart("d_gate", op.d_gate, "dy", op.dy);
  // d_up may replace dy, but d_gate may not: an op may write d_gate first and read dy again for
  // d_up.
  check.ApartOrSame("d_up", op.d_up, "up", op.up);
  check.ApartOrSame("d_up", op.d_up, "dy", op.dy);
  check.Apart("d_up", op.d_up, "gate", op.gate);
  check.Apart("d_up", op.d_up, "d_gate", op.d_gate);
}

void Check(Checker& check, const ops::CrossEntropy& op) {
  if (!(op.smoothing >= 0 && op.smoothing < 1)) {
    check.Fail("smoothing", "a number in [0, 1)", fmt::format("{}", op.smoothing));
  }
  check.Wide("logits_inout", op.logits_inout, op.targets.size, op.logits_inout.cols);
  check.Wide("logprob", op.logprob, 1, op.logits_inout.rows);
  check.Apart("logprob", op.logprob, "logits_inout", op.logits_inout);
  if (!op.row_scale.empty()) {
    check.Wide("row_scale", op.row_scale, 1, op.logits_inout.rows);
    check.Apart("logits_inout", op.logits_inout, "row_scale", op.row_scale);
    check.Apart("logprob", op.logprob, "row_scale", op.row_scale);
  }
  if (!op.hit.empty()) {
    check.Wide("hit", op.hit, 1, op.logits_inout.rows);
    check.Apart("hit", op.hit, "logits_inout", op.logits_inout);
    check.Apart("hit", op.hit, "logprob", op.logprob);
  }
  if (!op.mean.empty()) {
    check.Wide("mean", op.mean, 1, op.logits_inout.rows);
    check.Apart("mean", op.mean, "logits_inout", op.logits_inout);
    check.Apart("mean", op.mean, "logprob", op.logprob);
  }
  if (!op.entropy.empty()) {
    check.Wide("entropy", op.entropy, 1, op.logits_inout.rows);
    check.Apart("entropy", op.entropy, "logits_inout", op.logits_inout);
    check.Apart("entropy", op.entropy, "logprob", op.logprob);
    check.Apart("entropy", op.entropy, "mean", op.mean);
  }
}

void Check(Checker& check, const ops::KlDivergence& op) {
  check.Wide("logits_inout", op.logits_inout, op.base_inout.rows, op.base_inout.cols);
  check.Wide("base_inout", op.base_inout, op.logits_inout.rows, op.logits_inout.cols);
  check.Wide("kl", op.kl, 1, op.logits_inout.rows);
  check.Apart("base_inout", op.base_inout, "logits_inout", op.logits_inout);
  check.Apart("kl", op.kl, "logits_inout", op.logits_inout);
  check.Apart("kl", op.kl, "base_inout", op.base_inout);
}

void Check(Checker& check, const ops::SumRows& op) {
  check.Wide("values", op.values, op.values.rows, op.values.cols);
  // Sums over many rows need more digits than float32 has.
  check.Float64("sums_acc", op.sums_acc, 1, op.values.rows);
}

void Check(Checker& check, const ops::Copy& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Activation("y", op.y, op.x.rows, op.x.cols);
  check.Apart("y", op.y, "x", op.x);
}

void Check(Checker& check, const ops::Zero& op) {
  check.Activation("y", op.y, op.y.rows, op.y.cols);
}

void Check(Checker& check, const ops::Add& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Activation("y_acc", op.y_acc, op.x.rows, op.x.cols);
  check.Apart("y_acc", op.y_acc, "x", op.x);
}

// The values of row indices were checked when they were uploaded (CheckIndices).
void Check(Checker& check, const ops::GatherRows& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Activation("y", op.y, op.rows.size, op.x.cols);
  check.Apart("y", op.y, "x", op.x);
}

void Check(Checker& check, const ops::ScatterAddRows& op) {
  check.Activation("x", op.x, op.rows.size, op.y_acc.cols);
  check.Activation("y_acc", op.y_acc, op.y_acc.rows, op.y_acc.cols);
  check.Apart("y_acc", op.y_acc, "x", op.x);
}

void Check(Checker& check, const ops::ScaleRows& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Wide("scale", op.scale, 1, op.x.rows);
  check.Activation("y", op.y, op.x.rows, op.x.cols);
  check.ApartOrSame("y", op.y, "x", op.x);
  check.Apart("y", op.y, "scale", op.scale);
}

void Check(Checker& check, const ops::RowDots& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Activation("y", op.y, op.x.rows, op.x.cols);
  check.Wide("dots", op.dots, 1, op.x.rows);
  check.Apart("dots", op.dots, "x", op.x);
  check.Apart("dots", op.dots, "y", op.y);
}

void Check(Checker& check, const ops::AddNoise& op) {
  check.Wide("magnitude", op.magnitude, 1, op.y_acc.rows);
  check.Activation("y_acc", op.y_acc, op.y_acc.rows, op.y_acc.cols);
}

void Check(Checker& check, const ops::WeightGradient& op) {
  check.Activation("dy", op.dy, op.dy.rows, op.dy.cols);
  check.Activation("x", op.x, op.dy.rows, op.x.cols);
  check.Wide("dw_acc", op.dw_acc, op.dy.cols, op.x.cols);
  check.Apart("dw_acc", op.dw_acc, "dy", op.dy);
  check.Apart("dw_acc", op.dw_acc, "x", op.x);
}

void Check(Checker& check, const ops::RowNorms& op) {
  CheckLinear(check, {op.weight, {}, op.lora}, op.weight.cols());
  check.Wide("inverse", op.inverse, 1, op.weight.rows());
  if (!op.norm.empty()) {
    // An empty norm is not computed.
    check.Wide("norm", op.norm, 1, op.weight.rows());
    check.Apart("inverse", op.inverse, "norm", op.norm);
  }
}

void Check(Checker& check, const ops::ScaleColumns& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Wide("gain", op.gain, 1, op.x.cols);
  if (!op.bias.empty()) check.Wide("bias", op.bias, 1, op.x.cols);
  check.Activation("y", op.y, op.x.rows, op.x.cols);
  check.ApartOrSame("y", op.y, "x", op.x);
  check.Apart("y", op.y, "gain", op.gain);
  check.Apart("y", op.y, "bias", op.bias);
}

void Check(Checker& check, const ops::ColumnDots& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Activation("y", op.y, op.x.rows, op.x.cols);
  check.Wide("dots", op.dots, 1, op.x.cols);
  check.Apart("dots", op.dots, "x", op.x);
  check.Apart("dots", op.dots, "y", op.y);
}

void Check(Checker& check, const ops::ColumnSquares& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Float64("sums_acc", op.sums_acc, 1, op.x.cols);
}

void Check(Checker& check, const ops::Update& op) {
  check.AtLeast("step", 1, op.args.step);
  const std::int64_t n = op.gradient.cols;
  check.Wide("gradient", op.gradient, 1, n);
  check.Wide("param_inout", op.param_inout, 1, n);
  check.Apart("param_inout", op.param_inout, "gradient", op.gradient);
  // A moment that the rule needs must be there. Scales come with codes of 8 bits, one for each
  // block.
  const auto moment = [&](const char* name, const Moment& m, bool needed) {
    if (!needed && m.values.empty()) return;
    if (m.values.dtype == DType::kU8) {
      check.Bytes(name, m.values, 1, n);
      check.Wide("scales of a moment", m.scales, 1, (n + kDynamicBlock - 1) / kDynamicBlock);
    } else {
      check.Wide(name, m.values, 1, n);
    }
    check.Apart(name, m.values, "param_inout", op.param_inout);
  };
  moment("m_inout", op.m_inout, op.args.rule != UpdateRule::kSgd || op.args.beta1 != 0);
  moment("v_inout", op.v_inout, op.args.rule == UpdateRule::kAdamW);
  check.Apart("v_inout", op.v_inout.values, "m_inout", op.m_inout.values);
}

void Check(Checker& check, const ops::SumOfSquares& op) {
  check.Wide("x", op.x, 1, op.x.cols);
  check.Float64("sum", op.sum, 1, 1);
}

}  // namespace

// The overload for the struct in `op` is chosen at compile time; an op without a check does not
// compile.
void CheckOp(const Op& op) {
  std::visit(
      [](const auto& any) {
        Checker check(any.kName);
        Check(check, any);
      },
      op);
}

}  // namespace qlora
