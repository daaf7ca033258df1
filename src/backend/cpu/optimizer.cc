// AdamW and the sum of squares, over contiguous float32 ranges.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/rows.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// p = p (1 - lr decay) - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
void AdamW(const AdamWArgs& args, const ConstMatrixView& gradient, const MatrixView& param,
           const MatrixView& m, const MatrixView& v, std::int64_t begin, std::int64_t end) {
  const auto step = static_cast<double>(args.step);
  const auto rate = static_cast<float>(args.learning_rate / (1 - std::pow(args.beta1, step)));
  const auto root = static_cast<float>(std::sqrt(1 - std::pow(args.beta2, step)));
  const auto decay = static_cast<float>(1 - args.learning_rate * args.weight_decay);
  const auto scale = static_cast<float>(args.gradient_scale);
  const auto beta1 = static_cast<float>(args.beta1);
  const auto beta2 = static_cast<float>(args.beta2);
  const auto rest1 = static_cast<float>(1 - args.beta1);
  const auto rest2 = static_cast<float>(1 - args.beta2);
  const auto epsilon = static_cast<float>(args.epsilon);
  const float* g_row = gradient.Row<float>(0) + begin;
  float* p_row = param.Row<float>(0) + begin;
  float* m_row = m.Row<float>(0) + begin;
  float* v_row = v.Row<float>(0) + begin;
  ForEachVector(static_cast<std::size_t>(end - begin), [&](auto d, std::size_t i) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(d, g_row + i), hn::Set(d, scale));
    const auto m_new =
        hn::MulAdd(hn::Set(d, beta1), hn::LoadU(d, m_row + i), hn::Mul(hn::Set(d, rest1), g));
    const auto v_new = hn::MulAdd(hn::Set(d, beta2), hn::LoadU(d, v_row + i),
                                  hn::Mul(hn::Mul(hn::Set(d, rest2), g), g));
    const auto width = hn::Add(hn::Div(hn::Sqrt(v_new), hn::Set(d, root)), hn::Set(d, epsilon));
    const auto update = hn::Div(hn::Mul(hn::Set(d, rate), m_new), width);
    hn::StoreU(m_new, d, m_row + i);
    hn::StoreU(v_new, d, v_row + i);
    hn::StoreU(hn::MulSub(hn::Set(d, decay), hn::LoadU(d, p_row + i), update), d, p_row + i);
  });
}

// In float64; vectors of half as many lanes as float32.
double SumOfSquares(const ConstMatrixView& x, std::int64_t begin, std::int64_t end) {
  const float* row = x.Row<float>(0);
  double total = 0;
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = begin; i < end; ++i) total += static_cast<double>(row[i]) * row[i];
#else
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const auto value = hn::PromoteTo(d, hn::LoadU(df, row + i));
    sum = hn::MulAdd(value, value, sum);
  }
  total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < end; ++i) total += static_cast<double>(row[i]) * row[i];
#endif
  return total;
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(AdamW);
void AdamWRange(const AdamWArgs& args, const ConstMatrixView& gradient, const MatrixView& param,
                const MatrixView& m, const MatrixView& v, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(AdamW)(args, gradient, param, m, v, begin, end);
}

HWY_EXPORT(SumOfSquares);
double SumOfSquaresRange(const ConstMatrixView& x, std::int64_t begin, std::int64_t end) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, begin, end);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
