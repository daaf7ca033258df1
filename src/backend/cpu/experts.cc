// Mixture of experts: the routing of tokens, the dot products of rows from which the gradients of
// the weights of experts are made, and the gate of an expert that all tokens share.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/experts.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/activation-inl.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"
#include "backend/reference/experts.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void Dots(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out, Range rows) {
  const std::int64_t K = y.cols / out.cols;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow a(x, n);
    const ConstRow b(y, n);
    for (std::int64_t h = 0; h < out.cols; ++h) {
      Sum sum;
      ForEachVector(K, [&](auto d, std::int64_t i)
                           HWY_ATTR { sum.MulAdd(d, a.Load(d, h * K + i), b.Load(d, h * K + i)); });
      out.Row<float>(n)[h] = sum.Total();
    }
  }
}

// The sigmoid of gate n, which is value(0) of its row, and its slope.
struct GateOfRow {
  HWY_INLINE GateOfRow(const ConstMatrixView& gate, std::int64_t n) {
    const hn::CappedTag<float, 1> d1;
    const auto act = Activate(d1, Activation::kSigmoid, ConstRow(gate, n).Load(d1, 0));
    value = hn::GetLane(act.value);
    slope = hn::GetLane(act.slope);
  }
  float value;
  float slope;
};

void Gate(const ops::GateRows& op, Range rows) {
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const GateOfRow gate(op.gate, n);
    const ConstRow x(op.x, n);
    const Row y(op.y, n);
    ForEachVector(op.x.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      y.Store(d, hn::Mul(hn::Set(d, gate.value), x.Load(d, i)), i);
    });
  }
}

void GateBackward(const ops::GateRowsBackward& op, Range rows) {
  const hn::CappedTag<float, 1> d1;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const GateOfRow gate(op.gate, n);
    const ConstRow dy(op.dy, n);
    const ConstRow x(op.x, n);
    const Row dx(op.dx, n);
    Sum sum;
    ForEachVector(op.dy.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto dv = dy.Load(d, i);
      sum.MulAdd(d, dv, x.Load(d, i));
      dx.Store(d, hn::Mul(hn::Set(d, gate.value), dv), i);
    });
    Row(op.d_gate, n).Store(d1, hn::Set(d1, gate.slope * sum.Total()), 0);
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {
namespace {

reference::Mat<const float> FloatsOf(const ConstMatrixView& m) {
  return {static_cast<const float*>(m.data), m.rows, m.cols, m.stride};
}
reference::Mat<float> FloatsOf(const MatrixView& m) {
  return {static_cast<float*>(m.data), m.rows, m.cols, m.stride};
}

}  // namespace

// A row of router logits is short, and a layer has one per token, so the definition is fast enough.
void RouteExperts(const ops::RouteExperts& op) {
  reference::SelectExperts<float>(FloatsOf(op.logits), FloatsOf(op.bias),
                                  {op.score, op.normalize, op.scale}, op.routing.experts.data,
                                  FloatsOf(op.weights));
  reference::FillSlots(op.weights.cols, op.routing);
}

void RouteExpertsBackward(const ops::RouteExpertsBackward& op) {
  reference::SelectExpertsBackward<float>(FloatsOf(op.d_weights), op.experts.data,
                                          FloatsOf(op.weights), {op.score, op.normalize, op.scale},
                                          FloatsOf(op.logits_inout));
}

HWY_EXPORT(Gate);
void GateRows(const ops::GateRows& op, Range rows) { HWY_DYNAMIC_DISPATCH(Gate)(op, rows); }

HWY_EXPORT(GateBackward);
void GateRowsBackward(const ops::GateRowsBackward& op, Range rows) {
  HWY_DYNAMIC_DISPATCH(GateBackward)(op, rows);
}

HWY_EXPORT(Dots);
void RowDots(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
             Range rows) {
  HWY_DYNAMIC_DISPATCH(Dots)(x, y, out, rows);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
