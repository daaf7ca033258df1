// Cross entropy, row by row in float32 lanes. exp and tanh are Highway's: at most 1 and 4 units in
// the last place.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/loss.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/contrib/math/math-inl.h>

#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/rows.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void CrossEntropy(std::span<const std::int32_t> targets, float softcap,
                  const ConstMatrixView& row_scale, const MatrixView& logits,
                  const MatrixView& logprob, const MatrixView& hit, std::int64_t begin,
                  std::int64_t end) {
  const auto V = static_cast<std::size_t>(logits.cols);
  for (std::int64_t n = begin; n < end; ++n) {
    float* c = logits.Row<float>(n);
    const std::int32_t target = targets[n];
    Largest largest;
    ForEachVector(V, [&](auto d, std::size_t i) HWY_ATTR {
      auto value = hn::LoadU(d, c + i);
      if (softcap > 0) {
        const auto cap = hn::Set(d, softcap);
        value = hn::Mul(cap, hn::Tanh(d, hn::Div(value, cap)));
        hn::StoreU(value, d, c + i);
      }
      largest.Add(d, value);
    });
    const float top = largest.Total();
    Sum sum;
    ForEachVector(V, [&](auto d, std::size_t i) HWY_ATTR {
      sum.Add(d, hn::Exp(d, hn::Sub(hn::LoadU(d, c + i), hn::Set(d, top))));
    });
    const float lse = top + std::log(sum.Total());
    const float at_target = c[target];
    logprob.Row<float>(0)[n] = at_target - lse;
    if (!hit.empty()) hit.Row<float>(0)[n] = at_target >= top ? 1.0f : 0.0f;
    if (row_scale.empty()) continue;
    const float scale = row_scale.Row<float>(0)[n];
    const float normalizer = scale / sum.Total();
    const auto slope = [&](auto d, auto capped) HWY_ATTR {
      const auto ratio = hn::Div(capped, hn::Set(d, softcap));
      return hn::NegMulAdd(ratio, ratio, hn::Set(d, 1.0f));
    };
    ForEachVector(V, [&](auto d, std::size_t i) HWY_ATTR {
      const auto capped = hn::LoadU(d, c + i);
      const auto e = hn::Exp(d, hn::Sub(capped, hn::Set(d, top)));
      auto value = hn::Mul(e, hn::Set(d, normalizer));
      if (softcap > 0) value = hn::Mul(value, slope(d, capped));
      hn::StoreU(value, d, c + i);
    });
    const hn::CappedTag<float, 1> d1;
    const float target_slope = softcap > 0 ? hn::GetLane(slope(d1, hn::Set(d1, at_target))) : 1.0f;
    c[target] -= scale * target_slope;
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(CrossEntropy);
void CrossEntropyRows(std::span<const std::int32_t> targets, float softcap,
                      const ConstMatrixView& row_scale, const MatrixView& logits,
                      const MatrixView& logprob, const MatrixView& hit, std::int64_t begin,
                      std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(CrossEntropy)
  (targets, softcap, row_scale, logits, logprob, hit, begin, end);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
