// RMSNorm and its gradient, row by row in float32 lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// y = w x r,  r = (mean(x^2) + epsilon)^-1/2
void RmsNorm(const ops::RmsNorm& op, Range rows) {
  const std::int64_t D = op.x.cols;
  const ConstRow w(op.weight, 0);
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow in(op.x, n);
    const Row out(op.y, n);
    Sum sum;
    ForEachVector(D, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto value = in.Load(d, i);
      sum.MulAdd(d, value, value);
    });
    const float r = 1.0f / std::sqrt(sum.Total() / static_cast<float>(D) + op.epsilon);
    op.rstd.Row<float>(0)[n] = r;
    ForEachVector(D, [&](auto d, std::int64_t i) HWY_ATTR {
      // y is rounded once, to the type of y; rounding x r first, as some models were trained with,
      // differs in the last bit of bfloat16.
      out.Store(d, hn::Mul(hn::Mul(w.Load(d, i), in.Load(d, i)), hn::Set(d, r)), i);
    });
  }
}

// dx = r w dy - x r^3 mean(w dy x), where the mean is the projection of the gradient on x: a longer
// x has a smaller r.
void RmsNormBackward(const ops::RmsNormBackward& op, Range rows) {
  const std::int64_t D = op.x.cols;
  const ConstRow w(op.weight, 0);
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow g(op.dy, n);
    const ConstRow in(op.x, n);
    const Row out(op.dx, n);
    Sum sum;
    ForEachVector(D, [&](auto d, std::int64_t i) HWY_ATTR {
      sum.MulAdd(d, hn::Mul(w.Load(d, i), g.Load(d, i)), in.Load(d, i));
    });
    const float r = op.rstd.Row<float>(0)[n];
    const float projection = r * r * r * (sum.Total() / static_cast<float>(D));
    ForEachVector(D, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::Mul(w.Load(d, i), g.Load(d, i)), hn::Set(d, r));
      auto value = hn::NegMulAdd(in.Load(d, i), hn::Set(d, projection), scaled);
      if (op.store == Store::kAdd) value = hn::Add(value, out.Load(d, i));
      out.Store(d, value, i);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(RmsNorm);
void RmsNormRows(const ops::RmsNorm& op, Range rows) { HWY_DYNAMIC_DISPATCH(RmsNorm)(op, rows); }

HWY_EXPORT(RmsNormBackward);
void RmsNormBackwardRows(const ops::RmsNormBackward& op, Range rows) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackward)(op, rows);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
