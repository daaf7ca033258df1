// The operands of every op in the memory of a backend, for tests that check where they are.
#ifndef QLORA_TESTS_BACKEND_OP_OPERANDS_H_
#define QLORA_TESTS_BACKEND_OP_OPERANDS_H_

#include <concepts>
#include <type_traits>
#include <variant>

#include "backend/ops.h"
#include "quant/layout.h"

namespace qlora {

// all(operands...) for the operands of an op, which may be const or not.
template <typename T, typename Op>
concept OpLike = std::same_as<std::remove_const_t<T>, Op>;

void Operands(OpLike<ops::Embed> auto& op, const auto& all) { all(op.ids, op.table, op.y); }
void Operands(OpLike<ops::EmbedBackward> auto& op, const auto& all) {
  all(op.dy, op.ids, op.d_table_acc);
}
void Operands(OpLike<ops::RmsNorm> auto& op, const auto& all) {
  all(op.x, op.weight, op.y, op.rstd);
}
void Operands(OpLike<ops::RmsNormBackward> auto& op, const auto& all) {
  all(op.dy, op.x, op.weight, op.rstd, op.dx);
}
void Operands(OpLike<ops::Linear> auto& op, const auto& all) { all(op.linears, op.x, op.outputs); }
void Operands(OpLike<ops::LinearBackward> auto& op, const auto& all) {
  all(op.linears, op.x, op.gradients, op.dx);
}
void Operands(OpLike<ops::ExpertLinear> auto& op, const auto& all) {
  all(op.linears, op.x, op.outputs);
}
void Operands(OpLike<ops::ExpertLinearBackward> auto& op, const auto& all) {
  all(op.linears, op.x, op.gradients, op.dx);
}
void Operands(OpLike<ops::Rope> auto& op, const auto& all) {
  all(op.positions, op.table, op.x_inout);
}
void Operands(OpLike<ops::Attention> auto& op, const auto& all) {
  all(op.q, op.k, op.v, op.o, op.lse);
}
void Operands(OpLike<ops::AttentionBackward> auto& op, const auto& all) {
  all(op.d_o, op.q, op.k, op.v, op.o, op.lse, op.dq, op.dk, op.dv);
}
void Operands(OpLike<ops::AttentionSinks> auto& op, const auto& all) {
  all(op.sinks, op.lse_inout, op.o_inout);
}
void Operands(OpLike<ops::GatedActivation> auto& op, const auto& all) { all(op.gate, op.up, op.y); }
void Operands(OpLike<ops::GatedActivationBackward> auto& op, const auto& all) {
  all(op.dy, op.gate, op.up, op.d_gate, op.d_up);
}
void Operands(OpLike<ops::CrossEntropy> auto& op, const auto& all) {
  all(op.targets, op.row_scale, op.logits_inout, op.logprob, op.hit, op.mean, op.entropy);
}
void Operands(OpLike<ops::KlDivergence> auto& op, const auto& all) {
  all(op.base_inout, op.logits_inout, op.kl);
}
void Operands(OpLike<ops::SumRows> auto& op, const auto& all) { all(op.values, op.sums_acc); }
void Operands(OpLike<ops::Copy> auto& op, const auto& all) { all(op.x, op.y); }
void Operands(OpLike<ops::Zero> auto& op, const auto& all) { all(op.y); }
void Operands(OpLike<ops::Add> auto& op, const auto& all) { all(op.x, op.y_acc); }
void Operands(OpLike<ops::GatherRows> auto& op, const auto& all) { all(op.x, op.rows, op.y); }
void Operands(OpLike<ops::ScatterAddRows> auto& op, const auto& all) {
  all(op.x, op.rows, op.y_acc);
}
void Operands(OpLike<ops::RouteExperts> auto& op, const auto& all) {
  all(op.logits, op.routing, op.weights, op.bias);
}
void Operands(OpLike<ops::RouteExpertsBackward> auto& op, const auto& all) {
  all(op.d_weights, op.experts, op.weights, op.logits_inout);
}
void Operands(OpLike<ops::ScaleRows> auto& op, const auto& all) { all(op.x, op.scale, op.y); }
void Operands(OpLike<ops::RowDots> auto& op, const auto& all) { all(op.x, op.y, op.dots); }
void Operands(OpLike<ops::GateRows> auto& op, const auto& all) { all(op.x, op.gate, op.y); }
void Operands(OpLike<ops::GateRowsBackward> auto& op, const auto& all) {
  all(op.dy, op.x, op.gate, op.d_gate, op.dx);
}
void Operands(OpLike<ops::AddNoise> auto& op, const auto& all) { all(op.magnitude, op.y_acc); }
void Operands(OpLike<ops::WeightGradient> auto& op, const auto& all) {
  all(op.dy, op.x, op.dw_acc);
}
void Operands(OpLike<ops::RowNorms> auto& op, const auto& all) {
  all(op.weight, op.lora, op.norm, op.inverse);
}
void Operands(OpLike<ops::ScaleColumns> auto& op, const auto& all) {
  all(op.x, op.gain, op.bias, op.y);
}
void Operands(OpLike<ops::ColumnDots> auto& op, const auto& all) { all(op.x, op.y, op.dots); }
void Operands(OpLike<ops::ColumnSquares> auto& op, const auto& all) { all(op.x, op.sums_acc); }
void Operands(OpLike<ops::Update> auto& op, const auto& all) {
  all(op.gradient, op.param_inout, op.m_inout, op.v_inout);
}
void Operands(OpLike<ops::SumOfSquares> auto& op, const auto& all) { all(op.x, op.sum); }
void Operands(OpLike<ops::CausalConv> auto& op, const auto& all) {
  all(op.x, op.weight, op.bias, op.y, op.window_inout);
}
void Operands(OpLike<ops::CausalConvBackward> auto& op, const auto& all) {
  all(op.dy, op.x, op.weight, op.bias, op.dx);
}
void Operands(OpLike<ops::GatedDeltaRule> auto& op, const auto& all) {
  all(op.q, op.k, op.v, op.a, op.b, op.rate, op.dt_bias, op.o, op.state_inout);
}
void Operands(OpLike<ops::GatedDeltaRuleBackward> auto& op, const auto& all) {
  all(op.d_o, op.q, op.k, op.v, op.a, op.b, op.rate, op.dt_bias, op.dq, op.dk, op.dv, op.da, op.db);
}

// Calls see(data, bytes) for each operand of an op that is not absent.
template <typename See>
class OperandVisitor {
 public:
  explicit OperandVisitor(See see) : see_(see) {}

  void Visit(const Op& op) {
    const auto all = [this](const auto&... operands) { this->All(operands...); };
    std::visit([&](const auto& any) { Operands(any, all); }, op);
  }

 private:
  void One(const ConstMatrixView& m) {
    if (!m.empty()) see_(m.data, BytesOf(m.dtype, (m.rows - 1) * m.stride + m.cols));
  }
  void One(const MatrixView& m) { One(ConstMatrixView(m)); }
  void One(const IndexView& indices) { see_(indices.data, indices.size * sizeof(std::int32_t)); }
  void One(const IndexSpan& indices) { One(IndexView(indices)); }
  void One(WeightView weight) {
    if (weight.empty()) return;
    ForEachPart(weight, see_);
    if (weight.prepacked != nullptr) see_(weight.prepacked, 1);
  }
  void One(const LoraView& lora) { All(lora.a, lora.b); }
  void One(const LinearView& linear) { All(linear.weight, linear.bias, linear.lora); }
  void One(const LinearOutput& out) { All(out.y, out.u, out.base); }
  void One(const LinearGradient& g) { All(g.dy, g.u, g.da_acc, g.db_acc); }
  void One(const RopeTable& table) { All(table.cos, table.sin); }
  void One(const Moment& moment) { All(moment.values, moment.scales); }
  void One(const RoutingView& r) { All(r.experts, r.pairs, r.tokens, r.slots, r.begin); }
  template <typename T>
  void One(std::span<const T> many) {
    for (const T& one : many) One(one);
  }
  template <typename... T>
  void All(const T&... operands) {
    (One(operands), ...);
  }

  See see_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_BACKEND_OP_OPERANDS_H_
