// Scales and minima of groups whose values are scale * q + min, with q = 0, 1 ... levels.
//
// As in scale_fit-inl.h, codes give the best scale and minimum by least squares, and these give the
// nearest codes. The search starts from pairs that put the ends of the group's range on the first
// and last code, or somewhat beyond them. Included once per target.
#if defined(QLORA_GGML_AFFINE_FIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_AFFINE_FIT_INL_H_
#undef QLORA_GGML_AFFINE_FIT_INL_H_
#else
#define QLORA_GGML_AFFINE_FIT_INL_H_
#endif

#include <algorithm>

#include "ggml/lanes-inl.h"
#include "ggml/stored_scale.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

struct AffineFit {
  float scale;
  float min;
  float gain;  // how much smaller the error is than that of a group whose values are all the least
};

// Sums over a group with given codes q.
struct AffineSums {
  float error;  // w (x - scale q - min)^2
  float wq;
  float wqq;
  float wqx;
};

// A group of values x with weights w, and the search for its scale and minimum.
template <int kSize>
class AffineGroup {
 public:
  AffineGroup() = default;
  // max_min: the largest minimum that the format can store.
  HWY_INLINE AffineGroup(const float* x, const float* w, float levels, float max_min)
      : x_(x), w_(w), levels_(levels) {
    Lanes low = Load8(x);
    Lanes high = low;
    for (int i = kLanes8; i < kSize; i += kLanes8) {
      low = Min8(low, Load8(x + i));
      high = Max8(high, Load8(x + i));
    }
    float lows[kLanes8];
    float highs[kLanes8];
    Store8(low, lows);
    Store8(high, highs);
    base_ = std::min(max_min, *std::min_element(lows, lows + kLanes8));
    range_ = *std::max_element(highs, highs + kLanes8) - base_;
    largest_offset_ = max_min - base_;
    Lanes sum_w = Set8(0);
    Lanes sum_wy = Set8(0);
    for (int i = 0; i < kSize; i += kLanes8) {
      const Lanes wi = Load8(w + i);
      sum_w = Add8(sum_w, wi);
      sum_wy = Add8(sum_wy, Mul8(wi, Sub8(Load8(x + i), Set8(base_))));
    }
    w_sum_ = Total8(sum_w);
    wy_sum_ = Total8(sum_wy);
    wx_sum_ = wy_sum_ + base_ * w_sum_;
  }

  // The best scale and minimum for the codes that are nearest with those.
  HWY_INLINE AffineFit FitAt(float scale, float offset) const {
    const Lanes inverse = Set8(InverseOf(scale));
    Lanes sum_q = Set8(0);
    Lanes sum_qq = Set8(0);
    Lanes sum_qy = Set8(0);
    for (int i = 0; i < kSize; i += kLanes8) {
      const Lanes y = Sub8(Load8(x_ + i), Set8(base_));
      const Lanes q = NearestCode(Sub8(y, Set8(offset)), inverse);
      const Lanes wq = Mul8(Load8(w_ + i), q);
      sum_q = Add8(sum_q, wq);
      sum_qq = Add8(sum_qq, Mul8(wq, q));
      sum_qy = Add8(sum_qy, Mul8(wq, y));
    }
    return Solve(Total8(sum_q), Total8(sum_qq), Total8(sum_qy));
  }

  HWY_NOINLINE AffineFit Search() const {
    if (range_ < 1e-15f) return {0, base_, 0};
    AffineFit best{0, base_, 0};
    // The values of the first and the last code, above base_.
    const auto try_ends = [&](float first, float last) HWY_ATTR {
      const AffineFit fit = FitAt((last - first) / levels_, first);
      if (fit.gain > best.gain * kClearly) best = fit;
    };
    // In codes, inwards. An end outside the range leaves codes unused, which finds the step of
    // values that are multiples of one; but few codes have none to spare.
    constexpr float kCuts[] = {-1.0f, -0.2f, 0.3f, 0.9f, 1.8f, 3.0f};
    const auto is_sensible = [&](float cut) { return cut > -0.1f * levels_; };
    const float code = range_ / levels_;
    for (const float low : kCuts) {
      for (const float high : kCuts) {
        if (!is_sensible(std::min(low, high)) || low + high > 0.85f * levels_) continue;
        try_ends(low * code, range_ - high * code);
      }
    }
    const auto try_around = [&](float step) {
      const float first = best.min - base_;
      const float last = first + levels_ * best.scale;
      for (const float low : {0.0f, -step, step}) {
        for (const float high : {0.0f, -step, step}) try_ends(first + low, last + high);
      }
    };
    try_around(0.3f * best.scale);
    try_around(0.12f * best.scale);
    return best;
  }

  // Of the codes that are nearest with that scale and minimum.
  HWY_INLINE AffineSums SumsAt(float scale, float min) const {
    const Lanes inverse = Set8(InverseOf(scale));
    Lanes error = Set8(0);
    Lanes q_sum = Set8(0);
    Lanes qq_sum = Set8(0);
    Lanes qx_sum = Set8(0);
    for (int i = 0; i < kSize; i += kLanes8) {
      const Lanes x = Load8(x_ + i);
      const Lanes w = Load8(w_ + i);
      const Lanes q = NearestCode(Sub8(x, Set8(min)), inverse);
      const Lanes rest = Sub8(Sub8(x, Set8(min)), Mul8(Set8(scale), q));
      const Lanes wq = Mul8(w, q);
      error = Add8(error, Mul8(Mul8(w, rest), rest));
      q_sum = Add8(q_sum, wq);
      qq_sum = Add8(qq_sum, Mul8(wq, q));
      qx_sum = Add8(qx_sum, Mul8(wq, x));
    }
    return {Total8(error), Total8(q_sum), Total8(qq_sum), Total8(qx_sum)};
  }

  HWY_INLINE void CodesAt(float scale, float min, float* codes) const {
    const Lanes inverse = Set8(InverseOf(scale));
    for (int i = 0; i < kSize; i += kLanes8) {
      Store8(NearestCode(Sub8(Load8(x_ + i), Set8(min)), inverse), codes + i);
    }
  }

  float w_sum() const { return w_sum_; }
  float wx_sum() const { return wx_sum_; }

 private:
  HWY_INLINE Lanes NearestCode(Lanes above_min, Lanes inverse) const {
    return Round8(Min8(Max8(Mul8(above_min, inverse), Set8(0)), Set8(levels_)));
  }

  // Least squares of y = scale * q + offset, with offset <= largest_offset_.
  AffineFit Solve(double wq, double wqq, double wqy) const {
    const double det = w_sum_ * wqq - wq * wq;
    double scale = 0;
    double offset = 0;
    // Equal codes leave nothing of the determinant but what rounding makes.
    if (det > 1e-6 * w_sum_ * wqq) {
      scale = (w_sum_ * wqy - wq * wy_sum_) / det;
      offset = std::min<double>((wy_sum_ - scale * wq) / w_sum_, largest_offset_);
    }
    if (offset == 0 || offset == largest_offset_) scale = wqq > 0 ? (wqy - offset * wq) / wqq : 0;
    const double gain = 2 * (scale * wqy + offset * wy_sum_) - scale * scale * wqq -
                        offset * offset * w_sum_ - 2 * scale * offset * wq;
    return {static_cast<float>(scale), static_cast<float>(offset) + base_,
            static_cast<float>(gain)};
  }

  const float* x_;
  const float* w_;
  float levels_;
  float base_;
  float range_;
  float largest_offset_;  // of a minimum above base_
  float w_sum_;
  float wx_sum_;
  float wy_sum_;  // of y = x - base_
};

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
