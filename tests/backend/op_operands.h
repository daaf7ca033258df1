// The operands of every op in the memory of a backend, for tests that check where they are.
#ifndef QLORA_TESTS_BACKEND_OP_OPERANDS_H_
#define QLORA_TESTS_BACKEND_OP_OPERANDS_H_

#include <variant>

#include "backend/ops.h"
#include "quant/layout.h"

namespace qlora {

// Calls see(data, bytes) for each operand of an op that is not absent.
template <typename See>
class OperandVisitor {
 public:
  explicit OperandVisitor(See see) : see_(see) {}

  void Visit(const Op& op) {
    std::visit([this](const auto& any) { this->Operands(any); }, op);
  }

 private:
  void One(const ConstMatrixView& m) {
    if (!m.empty()) see_(m.data, BytesOf(m.dtype, (m.rows - 1) * m.stride + m.cols));
  }
  void One(const MatrixView& m) { One(ConstMatrixView(m)); }
  void One(const IndexView& indices) { see_(indices.data, indices.size * sizeof(std::int32_t)); }
  void One(const IndexSpan& indices) { One(IndexView(indices)); }
  void One(const QuantizedView& q) {
    see_(q.packed, PackedBytes(q.size()));
    see_(q.scales, q.blocks() * ScaleBytes(q.scale_type));
    see_(q.code, 16 * sizeof(float));
    if (q.scale_type != ScaleType::kDoubleBnb) return;
    see_(q.nested.map, 256 * sizeof(float));
    see_(q.nested.absmax, BlockCount(q.blocks(), q.nested.block_size) * sizeof(float));
  }
  void One(const WeightView& weight) {
    if (weight.is_dense()) return One(weight.dense);
    One(weight.quantized);
    if (weight.prepacked != nullptr) see_(weight.prepacked, 1);
  }
  void One(const LoraView& lora) { All(lora.a, lora.b); }
  void One(const LinearView& linear) { All(linear.weight, linear.bias, linear.lora); }
  void One(const LinearOutput& out) { All(out.y, out.u); }
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

  void Operands(const ops::Embed& op) { All(op.ids, op.table, op.y); }
  void Operands(const ops::EmbedBackward& op) { All(op.dy, op.ids, op.d_table_acc); }
  void Operands(const ops::RmsNorm& op) { All(op.x, op.weight, op.y, op.rstd); }
  void Operands(const ops::RmsNormBackward& op) { All(op.dy, op.x, op.weight, op.rstd, op.dx); }
  void Operands(const ops::Linear& op) { All(op.linears, op.x, op.outputs); }
  void Operands(const ops::LinearBackward& op) { All(op.linears, op.x, op.gradients, op.dx); }
  void Operands(const ops::ExpertLinear& op) { All(op.linears, op.begin, op.x, op.outputs); }
  void Operands(const ops::ExpertLinearBackward& op) {
    All(op.linears, op.begin, op.x, op.gradients, op.dx);
  }
  void Operands(const ops::Rope& op) { All(op.positions, op.table, op.x_inout); }
  void Operands(const ops::Attention& op) { All(op.q, op.k, op.v, op.o, op.lse); }
  void Operands(const ops::AttentionBackward& op) {
    All(op.d_o, op.q, op.k, op.v, op.o, op.lse, op.dq, op.dk, op.dv);
  }
  void Operands(const ops::GatedActivation& op) { All(op.gate, op.up, op.y); }
  void Operands(const ops::GatedActivationBackward& op) {
    All(op.dy, op.gate, op.up, op.d_gate, op.d_up);
  }
  void Operands(const ops::CrossEntropy& op) {
    All(op.targets, op.row_scale, op.logits_inout, op.logprob, op.hit);
  }
  void Operands(const ops::SumRows& op) { All(op.values, op.sums_acc); }
  void Operands(const ops::Copy& op) { All(op.x, op.y); }
  void Operands(const ops::Zero& op) { All(op.y); }
  void Operands(const ops::Add& op) { All(op.x, op.y_acc); }
  void Operands(const ops::GatherRows& op) { All(op.x, op.rows, op.y); }
  void Operands(const ops::ScatterAddRows& op) { All(op.x, op.rows, op.y_acc); }
  void Operands(const ops::RouteExperts& op) { All(op.logits, op.routing, op.weights); }
  void Operands(const ops::RouteExpertsBackward& op) {
    All(op.d_weights, op.experts, op.weights, op.logits_inout);
  }
  void Operands(const ops::ScaleRows& op) { All(op.x, op.scale, op.y); }
  void Operands(const ops::RowDots& op) { All(op.x, op.y, op.dots); }
  void Operands(const ops::AddNoise& op) { All(op.magnitude, op.y_acc); }
  void Operands(const ops::WeightGradient& op) { All(op.dy, op.x, op.dw_acc); }
  void Operands(const ops::RowNorms& op) { All(op.weight, op.lora, op.norm, op.inverse); }
  void Operands(const ops::ScaleColumns& op) { All(op.x, op.gain, op.bias, op.y); }
  void Operands(const ops::ColumnDots& op) { All(op.x, op.y, op.dots); }
  void Operands(const ops::ColumnSquares& op) { All(op.x, op.sums_acc); }
  void Operands(const ops::Update& op) { All(op.gradient, op.param_inout, op.m_inout, op.v_inout); }
  void Operands(const ops::SumOfSquares& op) { All(op.x, op.sum); }

  See see_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_BACKEND_OP_OPERANDS_H_
