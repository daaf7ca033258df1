// Two levels of scales and minima: values of group j are d * scale[j] * q - d_min * min[j], with
// small integers scale[j] and min[j]. Included once per target.
//
// As in super_scales-inl.h: each group gets a scale and a minimum of its own, these give a first d
// and d_min; then, in turns, groups choose their integers by the true error, and least squares over
// all codes gives d and d_min.
#if defined(QLORA_GGML_SUPER_AFFINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_SUPER_AFFINE_INL_H_
#undef QLORA_GGML_SUPER_AFFINE_INL_H_
#else
#define QLORA_GGML_SUPER_AFFINE_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>

#include "ggml/affine_fit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

template <int kGroups>
struct SuperAffine {
  float d = 0;
  float d_min = 0;
  std::array<int, kGroups> scales{};
  std::array<int, kGroups> mins{};
  double error = HUGE_VAL;
};

template <int kGroups>
class SuperAffineSearch {
 public:
  static constexpr int kSize = 256 / kGroups;
  using Group = AffineGroup<kSize>;
  using Result = SuperAffine<kGroups>;

  // levels: the largest code. top: the largest of the integers scale[j] and min[j].
  SuperAffineSearch(float levels, int top, const float* x, const float* w) : top_(top) {
    for (int j = 0; j < kGroups; ++j) {
      groups_[j] = Group(x + j * kSize, w + j * kSize, levels, 0);
      const AffineFit fit = groups_[j].Search();
      scales_[j] = fit.scale;
      sums_[j] = groups_[j].SumsAt(fit.scale, fit.min);
    }
  }

  HWY_NOINLINE Result Run() {
    Result best;
    Result next;
    next.d = FirstD();
    next.d_min = FirstDMin(next.d);
    for (int round = 0; round < 4; ++round) {
      ChooseIntegers(next);
      if (next.error >= best.error) break;
      best = next;
      Refit(next);
    }
    return best;
  }

  const Group& group(int j) const { return groups_[j]; }

 private:
  int NearestInteger(float x) const {
    return static_cast<int>(std::nearbyint(std::clamp(x, 0.0f, static_cast<float>(top_))));
  }

  // What is subtracted, -min, that suits the codes of group j best with that scale.
  float BestOffset(int j, float scale) const {
    return (scale * sums_[j].wq - groups_[j].wx_sum()) / groups_[j].w_sum();
  }

  // The unit of integers 0 ... top with the least sum of weight (x - unit * integer)^2.
  float BestUnit(const std::array<float, kGroups>& x,
                 const std::array<float, kGroups>& weights) const {
    const float largest = *std::max_element(x.begin(), x.end());
    if (largest <= 0) return 0;
    float best = 0;
    float least = HUGE_VALF;
    for (int k = -1; k < 24; ++k) {
      const float unit =
          NearestHalf(largest / (static_cast<float>(top_) * (1 - 0.025f * static_cast<float>(k))));
      if (unit == 0) continue;
      float error = 0;
      for (int j = 0; j < kGroups; ++j) {
        const float rest = x[j] - unit * static_cast<float>(NearestInteger(x[j] / unit));
        error += weights[j] * rest * rest;
      }
      if (error < least) {
        least = error;
        best = unit;
      }
    }
    return best;
  }

  // While the minimum follows the scale, the error grows by the variance of the codes.
  float FirstD() const {
    std::array<float, kGroups> weights;
    for (int j = 0; j < kGroups; ++j) {
      const float mean = sums_[j].wq / groups_[j].w_sum();
      weights[j] = std::max(0.0f, sums_[j].wqq - mean * sums_[j].wq);
    }
    return BestUnit(scales_, weights);
  }

  float FirstDMin(float d) const {
    std::array<float, kGroups> offsets;
    std::array<float, kGroups> weights;
    for (int j = 0; j < kGroups; ++j) {
      const int scale = d == 0 ? 0 : NearestInteger(scales_[j] / d);
      offsets[j] = std::max(0.0f, BestOffset(j, d * static_cast<float>(scale)));
      weights[j] = groups_[j].w_sum();
    }
    return BestUnit(offsets, weights);
  }

  void ChooseIntegers(Result& out) {
    out.error = 0;
    for (int j = 0; j < kGroups; ++j) {
      const int nearest = out.d == 0 ? 0 : NearestInteger(scales_[j] / out.d);
      AffineSums best;
      best.error = HUGE_VALF;
      for (int scale = std::max(nearest - 1, 0); scale <= std::min(nearest + 1, top_); ++scale) {
        const float step = out.d * static_cast<float>(scale);
        const int around = out.d_min == 0 ? 0 : NearestInteger(BestOffset(j, step) / out.d_min);
        for (int min = std::max(around - 1, 0); min <= std::min(around + 1, top_); ++min) {
          const AffineSums sums = groups_[j].SumsAt(step, -out.d_min * static_cast<float>(min));
          if (sums.error >= best.error) continue;
          best = sums;
          out.scales[j] = scale;
          out.mins[j] = min;
        }
      }
      sums_[j] = best;
      out.error += best.error;
    }
  }

  // Least squares of all values, for the codes of sums_.
  void Refit(Result& out) {
    double ss = 0, sm = 0, mm = 0, sx = 0, mx = 0;
    for (int j = 0; j < kGroups; ++j) {
      const double s = out.scales[j];
      const double m = out.mins[j];
      ss += s * s * sums_[j].wqq;
      sm += s * m * sums_[j].wq;
      mm += m * m * groups_[j].w_sum();
      sx += s * sums_[j].wqx;
      mx += m * groups_[j].wx_sum();
    }
    // ss d - sm d_min = sx,   sm d - mm d_min = mx
    const double det = ss * mm - sm * sm;
    if (det > 1e-9 * ss * mm) {
      out.d = NearestHalf(static_cast<float>((sx * mm - sm * mx) / det));
      out.d_min = NearestHalf(static_cast<float>((sm * sx - ss * mx) / det));
    } else if (ss > 0) {
      out.d = NearestHalf(static_cast<float>((sx + sm * out.d_min) / ss));
    }
    for (int j = 0; j < kGroups; ++j) scales_[j] = out.d * static_cast<float>(out.scales[j]);
  }

  const int top_;
  std::array<Group, kGroups> groups_;
  std::array<float, kGroups> scales_;
  std::array<AffineSums, kGroups> sums_;
};

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
