// Mixture of experts: the routing of tokens, and the dot products of rows from which the gradients
// of the weights of experts are made.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/experts.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"
#include "backend/reference_experts.h"

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
  reference::SelectExperts<float>(FloatsOf(op.logits), op.normalize, op.routing.experts.data,
                                  FloatsOf(op.weights));
  reference::FillSlots(op.weights.cols, op.routing);
}

void RouteExpertsBackward(const ops::RouteExpertsBackward& op) {
  reference::SelectExpertsBackward<float>(FloatsOf(op.d_weights), op.experts.data,
                                          FloatsOf(op.weights), op.normalize,
                                          FloatsOf(op.logits_inout));
}

HWY_EXPORT(Dots);
void RowDots(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
             Range rows) {
  HWY_DYNAMIC_DISPATCH(Dots)(x, y, out, rows);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
