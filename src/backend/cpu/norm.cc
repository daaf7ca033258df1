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
void RmsNorm(const ConstMatrixView& x, const ConstMatrixView& weight, float epsilon,
             const MatrixView& y, const MatrixView& rstd, std::int64_t begin, std::int64_t end) {
  const std::int64_t D = x.cols;
  const ConstRow w(weight, 0);
  for (std::int64_t n = begin; n < end; ++n) {
    const ConstRow in(x, n);
    const Row out(y, n);
    Sum sum;
    ForEachVector(D, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto value = in.Load(d, i);
      sum.MulAdd(d, value, value);
    });
    const float r = 1.0f / std::sqrt(sum.Total() / static_cast<float>(D) + epsilon);
    rstd.Row<float>(0)[n] = r;
    ForEachVector(D, [&](auto d, std::int64_t i) HWY_ATTR {
      out.Store(d, hn::Mul(hn::Mul(w.Load(d, i), in.Load(d, i)), hn::Set(d, r)), i);
    });
  }
}

// dx = r w dy - x r^3 mean(w dy x), where the mean is the projection of the gradient on x: a longer
// x has a smaller r.
void RmsNormBackward(const ConstMatrixView& dy, const ConstMatrixView& x,
                     const ConstMatrixView& weight, const ConstMatrixView& rstd,
                     const MatrixView& dx, Store store, std::int64_t begin, std::int64_t end) {
  const std::int64_t D = x.cols;
  const ConstRow w(weight, 0);
  for (std::int64_t n = begin; n < end; ++n) {
    const ConstRow g(dy, n);
    const ConstRow in(x, n);
    const Row out(dx, n);
    Sum sum;
    ForEachVector(D, [&](auto d, std::int64_t i) HWY_ATTR {
      sum.MulAdd(d, hn::Mul(w.Load(d, i), g.Load(d, i)), in.Load(d, i));
    });
    const float r = rstd.Row<float>(0)[n];
    const float projection = r * r * r * (sum.Total() / static_cast<float>(D));
    ForEachVector(D, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::Mul(w.Load(d, i), g.Load(d, i)), hn::Set(d, r));
      auto value = hn::NegMulAdd(in.Load(d, i), hn::Set(d, projection), scaled);
      if (store == Store::kAdd) value = hn::Add(value, out.Load(d, i));
      out.Store(d, value, i);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(RmsNorm);
void RmsNormRows(const ConstMatrixView& x, const ConstMatrixView& weight, float epsilon,
                 const MatrixView& y, const MatrixView& rstd, std::int64_t begin,
                 std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, epsilon, y, rstd, begin, end);
}

HWY_EXPORT(RmsNormBackward);
void RmsNormBackwardRows(const ConstMatrixView& dy, const ConstMatrixView& x,
                         const ConstMatrixView& weight, const ConstMatrixView& rstd,
                         const MatrixView& dx, Store store, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackward)(dy, x, weight, rstd, dx, store, begin, end);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
