#include "backend/backend.h"

#include "backend/checker.h"
#include "quant/moment_code.h"

namespace qlora {
namespace {

void CheckLinear(Checker& check, const LinearView& linear, std::int64_t in_features) {
  const WeightView& weight = linear.weight;
  const std::int64_t out_features = weight.rows();
  if (weight.is_dense()) {
    check.Frozen("weight", weight.dense, out_features, in_features);
  } else {
    const QuantizedView& q = weight.quantized;
    check.Equal("columns of weight", in_features, q.cols);
    check.AtLeast("rows of weight", 1, q.rows);
    check.AtLeast("block size of weight", 1, q.block_size);
    if (q.packed == nullptr || q.code == nullptr || q.scales == nullptr) {
      check.Fail("weight", "dense values, or 4-bit values with code and scales", "neither");
    }
    if (q.scale_type == ScaleType::kDoubleBnb &&
        (q.nested.absmax == nullptr || q.nested.map == nullptr || q.nested.block_size < 1)) {
      check.Fail("weight", "nested scales for a double-quantized weight", "none");
    }
  }
  if (!linear.bias.empty()) check.Wide("bias", linear.bias, 1, out_features);
  const LoraView& lora = linear.lora;
  if (!lora.a.empty()) {
    check.Wide("lora.a", lora.a, lora.a.rows, in_features);
    check.Wide("lora.b", lora.b, out_features, lora.a.rows);
    if (!(lora.dropout >= 0 && lora.dropout < 1)) {
      check.Fail("lora.dropout", "a value in [0, 1)", fmt::format("{}", lora.dropout));
    }
  } else {
    check.Absent("lora.b", lora.b);
  }
}

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

bool Intersect(std::int64_t a, std::int64_t a_count, std::int64_t b, std::int64_t b_count) {
  return a < b + b_count && b < a + a_count && a_count > 0 && b_count > 0;
}

}  // namespace

std::size_t Backend::PrepackedBytes(const QuantizedView&) const { return 0; }

void Backend::Prepack(const QuantizedView&, std::byte*) {
  ThrowRuntime("Prepack: this backend prepacks no weights");
}

void Backend::Embed(std::span<const std::int32_t> ids, ConstMatrixView table, float scale,
                    MatrixView y) {
  Checker check("Embed");
  const auto N = static_cast<std::int64_t>(ids.size());
  check.Activation("y", y, N, table.cols);
  check.Frozen("table", table, table.rows, table.cols);
  check.Indices("ids", ids, N, table.rows);
  check.Apart("y", y, "table", table);
  DoEmbed(ids, table, scale, y);
}

void Backend::RmsNorm(ConstMatrixView x, ConstMatrixView weight, float epsilon, MatrixView y,
                      MatrixView rstd) {
  Checker check("RmsNorm");
  check.Activation("x", x, x.rows, x.cols);
  check.Wide("weight", weight, 1, x.cols);
  check.Activation("y", y, x.rows, x.cols);
  check.Wide("rstd", rstd, 1, x.rows);
  check.Apart("y", y, "x", x);
  check.Apart("y", y, "weight", weight);
  check.Apart("rstd", rstd, "x", x);
  DoRmsNorm(x, weight, epsilon, y, rstd);
}

void Backend::RmsNormBackward(ConstMatrixView dy, ConstMatrixView x, ConstMatrixView weight,
                              ConstMatrixView rstd, MatrixView dx, Store store) {
  Checker check("RmsNormBackward");
  check.Activation("dy", dy, x.rows, x.cols);
  check.Activation("x", x, x.rows, x.cols);
  check.Wide("weight", weight, 1, x.cols);
  check.Wide("rstd", rstd, 1, x.rows);
  check.Activation("dx", dx, x.rows, x.cols);
  check.ApartOrSame("dx", dx, "dy", dy);
  check.Apart("dx", dx, "x", x);
  check.Apart("dx", dx, "rstd", rstd);
  DoRmsNormBackward(dy, x, weight, rstd, dx, store);
}

void Backend::Linear(std::span<const LinearView> linears, ConstMatrixView x,
                     std::span<const LinearOutput> outputs, Store store) {
  Checker check("Linear");
  check.Activation("x", x, x.rows, x.cols);
  check.Equal("number of outputs", static_cast<std::int64_t>(linears.size()),
              static_cast<std::int64_t>(outputs.size()));
  for (std::size_t l = 0; l < linears.size(); ++l) {
    check.SetLinear(l);
    CheckLinear(check, linears[l], x.cols);
    const WeightView& weight = linears[l].weight;
    if (weight.prepacked != nullptr &&
        (weight.is_dense() || PrepackedBytes(weight.quantized) == 0)) {
      check.Fail("prepacked", "none, or of a weight that this backend prepacks", "one of another");
    }
    const LinearOutput& out = outputs[l];
    const std::int64_t rank = linears[l].lora.a.rows;
    check.Activation("y", out.y, x.rows, linears[l].weight.rows());
    if (rank == 0) {
      check.Absent("u", out.u);
    } else {
      check.Wide("u", out.u, x.rows, rank);
    }
    check.Apart("y", out.y, "x", x);
    check.Apart("y", out.y, "u", out.u);
    check.Apart("u", out.u, "x", x);
  }
  if (x.rows == 0) return;
  DoLinear(linears, x, outputs, store);
}

void Backend::LinearBackward(std::span<const LinearView> linears, ConstMatrixView x,
                             std::span<const LinearGradient> gradients, MatrixView dx,
                             Store store) {
  Checker check("LinearBackward");
  check.Activation("x", x, x.rows, x.cols);
  check.Equal("number of gradients", static_cast<std::int64_t>(linears.size()),
              static_cast<std::int64_t>(gradients.size()));
  if (!dx.empty()) check.Activation("dx", dx, x.rows, x.cols);
  check.Apart("dx", dx, "x", x);
  for (std::size_t l = 0; l < linears.size(); ++l) {
    check.SetLinear(l);
    CheckLinear(check, linears[l], x.cols);
    const LinearGradient& g = gradients[l];
    const std::int64_t out_features = linears[l].weight.rows();
    const std::int64_t rank = linears[l].lora.a.rows;
    check.Activation("dy", g.dy, x.rows, out_features);
    if (rank == 0) {
      check.Absent("u", g.u);
      check.Absent("da_acc", g.da_acc);
      check.Absent("db_acc", g.db_acc);
    } else {
      check.Wide("u", g.u, x.rows, rank);
      check.Wide("da_acc", g.da_acc, rank, x.cols);
      check.Wide("db_acc", g.db_acc, out_features, rank);
    }
    check.Apart("dx", dx, "dy", g.dy);
    check.Apart("da_acc", g.da_acc, "lora.a", linears[l].lora.a);
    check.Apart("db_acc", g.db_acc, "lora.b", linears[l].lora.b);
  }
  if (x.rows == 0) return;
  DoLinearBackward(linears, x, gradients, dx, store);
}

void Backend::Rope(std::span<const std::int32_t> positions, const RopeTable& table,
                   std::int64_t heads, bool inverse, MatrixView x_inout) {
  Checker check("Rope");
  check.AtLeast("heads", 1, heads);
  check.Activation("x_inout", x_inout, x_inout.rows, x_inout.cols);
  check.Equal("columns of x_inout modulo heads", 0, x_inout.cols % heads);
  check.Wide("cos", table.cos, table.cos.rows, table.cos.cols);
  check.Wide("sin", table.sin, table.cos.rows, table.cos.cols);
  check.AtLeast("head_dim", 2 * table.cos.cols, x_inout.cols / heads);
  check.Indices("positions", positions, x_inout.rows, table.cos.rows);
  DoRope(positions, table, heads, inverse, x_inout);
}

void Backend::Attention(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                        ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, MatrixView o,
                        MatrixView lse) {
  Checker check("Attention");
  CheckAttention(check, shape, spans, q, k, v);
  check.Activation("o", o, q.rows, q.cols);
  check.Wide("lse", lse, q.rows, shape.heads);
  check.Apart("o", o, "q", q);
  check.Apart("o", o, "k", k);
  check.Apart("o", o, "v", v);
  if (q.rows == 0) return;
  DoAttention(shape, spans, q, k, v, o, lse);
}

void Backend::AttentionBackward(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                                ConstMatrixView d_o, ConstMatrixView q, ConstMatrixView k,
                                ConstMatrixView v, ConstMatrixView o, ConstMatrixView lse,
                                MatrixView dq, MatrixView dk, MatrixView dv) {
  Checker check("AttentionBackward");
  CheckAttention(check, shape, spans, q, k, v);
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
  check.Equal("rows of q in spans", q.rows, q_rows);
  check.Equal("rows of k in spans", k.rows, kv_rows);
  check.Activation("d_o", d_o, q.rows, q.cols);
  check.Activation("o", o, q.rows, q.cols);
  check.Wide("lse", lse, q.rows, shape.heads);
  const MatrixView* outputs[] = {&dq, &dk, &dv};
  const ConstMatrixView* inputs[] = {&d_o, &q, &k, &v, &o};
  const char* output_names[] = {"dq", "dk", "dv"};
  const char* input_names[] = {"d_o", "q", "k", "v", "o"};
  for (int i = 0; i < 3; ++i) {
    const ConstMatrixView& like = *inputs[i + 1];
    check.Activation(output_names[i], *outputs[i], like.rows, like.cols);
    for (int j = 0; j < 5; ++j) {
      check.Apart(output_names[i], *outputs[i], input_names[j], *inputs[j]);
    }
  }
  check.Apart("dk", dk, "dq", dq);
  check.Apart("dv", dv, "dq", dq);
  check.Apart("dv", dv, "dk", dk);
  if (q.rows == 0) return;
  DoAttentionBackward(shape, spans, d_o, q, k, v, o, lse, dq, dk, dv);
}

void Backend::GatedActivation(Activation activation, ConstMatrixView gate, ConstMatrixView up,
                              MatrixView y) {
  Checker check("GatedActivation");
  check.Activation("gate", gate, gate.rows, gate.cols);
  check.Activation("up", up, gate.rows, gate.cols);
  check.Activation("y", y, gate.rows, gate.cols);
  check.ApartOrSame("y", y, "gate", gate);
  check.ApartOrSame("y", y, "up", up);
  DoGatedActivation(activation, gate, up, y);
}

void Backend::GatedActivationBackward(Activation activation, ConstMatrixView dy,
                                      ConstMatrixView gate, ConstMatrixView up, MatrixView d_gate,
                                      MatrixView d_up) {
  Checker check("GatedActivationBackward");
  check.Activation("dy", dy, gate.rows, gate.cols);
  check.Activation("gate", gate, gate.rows, gate.cols);
  check.Activation("up", up, gate.rows, gate.cols);
  check.Activation("d_gate", d_gate, gate.rows, gate.cols);
  check.Activation("d_up", d_up, gate.rows, gate.cols);
  check.ApartOrSame("d_gate", d_gate, "gate", gate);
  check.Apart("d_gate", d_gate, "up", up);
  check.Apart("d_gate", d_gate, "dy", dy);
  check.ApartOrSame("d_up", d_up, "up", up);
  check.ApartOrSame("d_up", d_up, "dy", dy);
  check.Apart("d_up", d_up, "gate", gate);
  check.Apart("d_up", d_up, "d_gate", d_gate);
  DoGatedActivationBackward(activation, dy, gate, up, d_gate, d_up);
}

void Backend::CrossEntropy(std::span<const std::int32_t> targets, float softcap,
                           double gradient_scale, MatrixView logits_inout, MatrixView row_loss,
                           MatrixView row_hit) {
  Checker check("CrossEntropy");
  check.Wide("logits_inout", logits_inout, logits_inout.rows, logits_inout.cols);
  check.Wide("row_loss", row_loss, 1, logits_inout.rows);
  check.Indices("targets", targets, logits_inout.rows, logits_inout.cols);
  check.Apart("row_loss", row_loss, "logits_inout", logits_inout);
  if (!row_hit.empty()) {
    check.Wide("row_hit", row_hit, 1, logits_inout.rows);
    check.Apart("row_hit", row_hit, "logits_inout", logits_inout);
    check.Apart("row_hit", row_hit, "row_loss", row_loss);
  }
  DoCrossEntropy(targets, softcap, gradient_scale, logits_inout, row_loss, row_hit);
}

void Backend::Add(ConstMatrixView x, MatrixView y_acc) {
  Checker check("Add");
  check.Activation("x", x, x.rows, x.cols);
  check.Activation("y_acc", y_acc, x.rows, x.cols);
  check.Apart("y_acc", y_acc, "x", x);
  DoAdd(x, y_acc);
}

void Backend::GatherRows(ConstMatrixView x, std::span<const std::int32_t> rows, MatrixView y) {
  Checker check("GatherRows");
  check.Activation("x", x, x.rows, x.cols);
  check.Activation("y", y, static_cast<std::int64_t>(rows.size()), x.cols);
  check.Indices("rows", rows, y.rows, x.rows);
  check.Apart("y", y, "x", x);
  DoGatherRows(x, rows, y);
}

void Backend::ScatterAddRows(ConstMatrixView x, std::span<const std::int32_t> rows,
                             MatrixView y_acc) {
  Checker check("ScatterAddRows");
  check.Activation("x", x, static_cast<std::int64_t>(rows.size()), y_acc.cols);
  check.Activation("y_acc", y_acc, y_acc.rows, y_acc.cols);
  check.Indices("rows", rows, x.rows, y_acc.rows);
  check.Apart("y_acc", y_acc, "x", x);
  DoScatterAddRows(x, rows, y_acc);
}

void Backend::SelectExperts(ConstMatrixView logits, bool normalize, std::span<std::int32_t> experts,
                            MatrixView weights) {
  Checker check("SelectExperts");
  check.Wide("logits", logits, logits.rows, logits.cols);
  check.Wide("weights", weights, logits.rows, weights.cols);
  check.AtLeast("experts to choose from", weights.cols, logits.cols);
  check.Equal("experts", logits.rows * weights.cols, static_cast<std::int64_t>(experts.size()));
  check.Apart("weights", weights, "logits", logits);
  DoSelectExperts(logits, normalize, experts, weights);
}

void Backend::SelectExpertsBackward(ConstMatrixView d_weights,
                                    std::span<const std::int32_t> experts, ConstMatrixView weights,
                                    bool normalize, MatrixView logits_inout) {
  Checker check("SelectExpertsBackward");
  check.Wide("logits_inout", logits_inout, logits_inout.rows, logits_inout.cols);
  check.Wide("weights", weights, logits_inout.rows, weights.cols);
  check.Wide("d_weights", d_weights, logits_inout.rows, weights.cols);
  check.Indices("experts", experts, weights.rows * weights.cols, logits_inout.cols);
  check.Apart("logits_inout", logits_inout, "weights", weights);
  check.Apart("logits_inout", logits_inout, "d_weights", d_weights);
  DoSelectExpertsBackward(d_weights, experts, weights, normalize, logits_inout);
}

void Backend::ScaleRows(ConstMatrixView x, ConstMatrixView scale, MatrixView y) {
  Checker check("ScaleRows");
  check.Activation("x", x, x.rows, x.cols);
  check.Wide("scale", scale, 1, x.rows);
  check.Activation("y", y, x.rows, x.cols);
  check.ApartOrSame("y", y, "x", x);
  check.Apart("y", y, "scale", scale);
  DoScaleRows(x, scale, y);
}

void Backend::RowDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) {
  Checker check("RowDots");
  check.Activation("x", x, x.rows, x.cols);
  check.Activation("y", y, x.rows, x.cols);
  check.Wide("dots", dots, 1, x.rows);
  check.Apart("dots", dots, "x", x);
  check.Apart("dots", dots, "y", y);
  DoRowDots(x, y, dots);
}

void Backend::AddNoise(RandomKey key, ConstMatrixView magnitude, MatrixView y_acc) {
  Checker check("AddNoise");
  check.Wide("magnitude", magnitude, 1, y_acc.rows);
  check.Activation("y_acc", y_acc, y_acc.rows, y_acc.cols);
  DoAddNoise(key, magnitude, y_acc);
}

void Backend::WeightGradient(ConstMatrixView dy, ConstMatrixView x, MatrixView dw_acc) {
  Checker check("WeightGradient");
  check.Activation("dy", dy, dy.rows, dy.cols);
  check.Activation("x", x, dy.rows, x.cols);
  check.Wide("dw_acc", dw_acc, dy.cols, x.cols);
  check.Apart("dw_acc", dw_acc, "dy", dy);
  check.Apart("dw_acc", dw_acc, "x", x);
  if (dy.rows == 0) return;
  DoWeightGradient(dy, x, dw_acc);
}

void Backend::RowNorms(const WeightView& weight, const LoraView& lora, MatrixView norm,
                       MatrixView inverse) {
  Checker check("RowNorms");
  CheckLinear(check, {weight, {}, lora}, weight.cols());
  check.Wide("inverse", inverse, 1, weight.rows());
  if (!norm.empty()) {
    check.Wide("norm", norm, 1, weight.rows());
    check.Apart("inverse", inverse, "norm", norm);
  }
  DoRowNorms(weight, lora, norm, inverse);
}

void Backend::ScaleColumns(ConstMatrixView x, ConstMatrixView gain, ConstMatrixView bias,
                           MatrixView y, Store store) {
  Checker check("ScaleColumns");
  check.Activation("x", x, x.rows, x.cols);
  check.Wide("gain", gain, 1, x.cols);
  if (!bias.empty()) check.Wide("bias", bias, 1, x.cols);
  check.Activation("y", y, x.rows, x.cols);
  check.ApartOrSame("y", y, "x", x);
  check.Apart("y", y, "gain", gain);
  DoScaleColumns(x, gain, bias, y, store);
}

void Backend::ColumnDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) {
  Checker check("ColumnDots");
  check.Activation("x", x, x.rows, x.cols);
  check.Activation("y", y, x.rows, x.cols);
  check.Wide("dots", dots, 1, x.cols);
  check.Apart("dots", dots, "x", x);
  check.Apart("dots", dots, "y", y);
  DoColumnDots(x, y, dots);
}

void Backend::Update(const UpdateArgs& args, ConstMatrixView gradient, MatrixView param_inout,
                     const Moment& m_inout, const Moment& v_inout) {
  Checker check("Update");
  check.AtLeast("step", 1, args.step);
  const std::int64_t n = gradient.cols;
  check.Wide("gradient", gradient, 1, n);
  check.Wide("param_inout", param_inout, 1, n);
  check.Apart("param_inout", param_inout, "gradient", gradient);
  const auto moment = [&](const char* name, const Moment& m, bool wanted) {
    if (!wanted && m.values.empty()) return;
    if (m.values.dtype == DType::kU8) {
      check.Bytes(name, m.values, 1, n);
      check.Wide("scales of a moment", m.scales, 1, (n + kDynamicBlock - 1) / kDynamicBlock);
    } else {
      check.Wide(name, m.values, 1, n);
    }
    check.Apart(name, m.values, "param_inout", param_inout);
  };
  moment("m_inout", m_inout, args.rule != UpdateRule::kSgd || args.beta1 != 0);
  moment("v_inout", v_inout, args.rule == UpdateRule::kAdamW);
  check.Apart("v_inout", v_inout.values, "m_inout", m_inout.values);
  DoUpdate(args, gradient, param_inout, m_inout, v_inout);
}

double Backend::SumOfSquares(ConstMatrixView x) {
  Checker check("SumOfSquares");
  check.Wide("x", x, 1, x.cols);
  return DoSumOfSquares(x);
}

}  // namespace qlora
