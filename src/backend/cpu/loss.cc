// Cross entropy and KL divergence, row by row in float32 lanes. exp and tanh are Highway's: at most
// 1 and 4 units in the last place.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/loss.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/contrib/math/math-inl.h>

#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// Caps a row of logits and returns the largest.
float Cap(std::int64_t V, float softcap, float* c) {
  Largest largest;
  ForEachVector(V, [&](auto d, std::int64_t i) HWY_ATTR {
    auto value = hn::LoadU(d, c + i);
    if (softcap > 0) {
      const auto cap = hn::Set(d, softcap);
      // Soft capping of Gemma 2: z = cap tanh(x / cap). The capped z overwrites x, since the
      // gradient below needs z alone: dz/dx = 1 - (z / cap)^2.
      value = hn::Mul(cap, hn::Tanh(d, hn::Div(value, cap)));
      hn::StoreU(value, d, c + i);
    }
    largest.Add(d, value);
  });
  return largest.Total();
}

// dz/dx of a capped logit z.
template <class D>
hn::Vec<D> CapSlope(D d, hn::Vec<D> capped, float softcap) {
  const auto ratio = hn::Div(capped, hn::Set(d, softcap));
  return hn::NegMulAdd(ratio, ratio, hn::Set(d, 1.0f));
}

void CrossEntropy(const ops::CrossEntropy& op, Range rows) {
  const std::int64_t V = op.logits_inout.cols;
  const float softcap = op.softcap;
  const float smoothing = op.smoothing;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    float* c = op.logits_inout.Row<float>(n);
    const std::int32_t target = op.targets.data[n];
    // log(sum exp(z)) = top + log(sum exp(z - top)): every exponent is <= 0 and the largest is 0,
    // so the sum is in [1, V] and can neither overflow nor vanish.
    const float top = Cap(V, softcap, c);
    Sum sum;
    Sum below_top;  // of z - top, for label smoothing and the mean
    Sum weighted;   // of exp(z - top) (z - top), for the entropy
    const bool adds = smoothing > 0 || !op.mean.empty();
    const bool weighs = !op.entropy.empty();
    ForEachVector(V, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto below = hn::Sub(hn::LoadU(d, c + i), hn::Set(d, top));
      const auto e = hn::Exp(d, below);
      sum.Add(d, e);
      if (adds) below_top.Add(d, below);
      if (weighs) {
        const auto term = hn::Mul(e, below);
        weighted.Add(d, hn::IfThenElseZero(hn::Gt(e, hn::Zero(d)), term));  // 0 log 0 is 0
      }
    });
    const float mean_below = below_top.Total() / static_cast<float>(V);
    const float log_sum = std::log(sum.Total());
    const float lse = top + log_sum;
    const float at_target = c[target];
    float logprob = at_target - lse;
    if (smoothing > 0) {
      logprob = (1 - smoothing) * logprob + smoothing * (mean_below - log_sum);
    }
    op.logprob.Row<float>(0)[n] = logprob;
    if (!op.mean.empty()) op.mean.Row<float>(0)[n] = top + mean_below;
    // -sum p log p with log p = z - top - log_sum.
    if (weighs) op.entropy.Row<float>(0)[n] = log_sum - weighted.Total() / sum.Total();
    if (!op.hit.empty()) op.hit.Row<float>(0)[n] = at_target >= top ? 1.0f : 0.0f;
    if (op.row_scale.empty()) continue;
    const float scale = op.row_scale.Row<float>(0)[n];
    // d(loss)/dx = row_scale (softmax(z) - smoothing / V - (1 - smoothing) [i = target]) dz/dx. The
    // logits become their own gradient: no second (rows, V) matrix, the largest of a training step,
    // is kept.
    const float normalizer = scale / sum.Total();
    const float uniform = scale * smoothing / static_cast<float>(V);
    ForEachVector(V, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto capped = hn::LoadU(d, c + i);
      const auto e = hn::Exp(d, hn::Sub(capped, hn::Set(d, top)));
      auto value = hn::Sub(hn::Mul(e, hn::Set(d, normalizer)), hn::Set(d, uniform));
      if (softcap > 0) value = hn::Mul(value, CapSlope(d, capped, softcap));
      hn::StoreU(value, d, c + i);
    });
    // The part of the target is subtracted after the loop, outside of the vectors, so that lanes
    // need no comparison with the index of the target. `at_target` was read before the loop
    // overwrote z.
    const hn::CappedTag<float, 1> d1;
    const float target_slope =
        softcap > 0 ? hn::GetLane(CapSlope(d1, hn::Set(d1, at_target), softcap)) : 1.0f;
    c[target] -= (1 - smoothing) * scale * target_slope;
  }
}

// d(kl)/dx = scale (p - q) dz/dx. Rows of the same bits go through the same operations, so that
// every difference between them is 0, and with it kl and the gradient.
void KlDivergence(const ops::KlDivergence& op, Range rows) {
  const std::int64_t V = op.logits_inout.cols;
  const float softcap = op.softcap;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    float* b = op.base_inout.Row<float>(n);
    float* c = op.logits_inout.Row<float>(n);
    const float base_top = Cap(V, softcap, b);
    const float top = Cap(V, softcap, c);
    Sum base_sum;
    Sum sum;
    Sum weighted;  // of exp(b - base_top) (b - base_top - (c - top))
    ForEachVector(V, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto base_below = hn::Sub(hn::LoadU(d, b + i), hn::Set(d, base_top));
      const auto below = hn::Sub(hn::LoadU(d, c + i), hn::Set(d, top));
      const auto e = hn::Exp(d, base_below);
      base_sum.Add(d, e);
      sum.Add(d, hn::Exp(d, below));
      const auto term = hn::Mul(e, hn::Sub(base_below, below));
      weighted.Add(d, hn::IfThenElseZero(hn::Gt(e, hn::Zero(d)), term));  // 0 log 0 is 0
      hn::StoreU(e, d, b + i);
    });
    op.kl.Row<float>(0)[n] =
        weighted.Total() / base_sum.Total() + (std::log(sum.Total()) - std::log(base_sum.Total()));
    const float base_normalizer = 1 / base_sum.Total();
    const float normalizer = 1 / sum.Total();
    ForEachVector(V, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto capped = hn::LoadU(d, c + i);
      const auto e = hn::Exp(d, hn::Sub(capped, hn::Set(d, top)));
      const auto p = hn::Mul(e, hn::Set(d, normalizer));
      const auto q = hn::Mul(hn::LoadU(d, b + i), hn::Set(d, base_normalizer));
      auto value = hn::Mul(hn::Sub(p, q), hn::Set(d, op.scale));
      if (softcap > 0) value = hn::Mul(value, CapSlope(d, capped, softcap));
      hn::StoreU(q, d, b + i);
      hn::StoreU(value, d, c + i);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(CrossEntropy);
void CrossEntropyRows(const ops::CrossEntropy& op, Range rows) {
  HWY_DYNAMIC_DISPATCH(CrossEntropy)(op, rows);
}

HWY_EXPORT(KlDivergence);
void KlDivergenceRows(const ops::KlDivergence& op, Range rows) {
  HWY_DYNAMIC_DISPATCH(KlDivergence)(op, rows);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
