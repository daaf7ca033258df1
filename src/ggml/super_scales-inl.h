// Two levels of scales: a group j of a block has the scale d * level[j], with small integers as
// levels. Included once per target.
//
// First each group gets the scale that it would have alone. Near that scale s the error of a group
// grows by C (scale - s)^2 (scale_fit-inl.h), which gives a first d. Then, in turns, each group
// chooses among three levels by its true error, and least squares gives the d that suits all codes.
#if defined(QLORA_GGML_SUPER_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_SUPER_SCALES_INL_H_
#undef QLORA_GGML_SUPER_SCALES_INL_H_
#else
#define QLORA_GGML_SUPER_SCALES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>

#include "ggml/scale_fit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

struct LevelRange {
  int low;
  int high;

  int Nearest(float x) const {
    return static_cast<int>(
        std::nearbyint(std::clamp(x, static_cast<float>(low), static_cast<float>(high))));
  }
};

template <int kGroups>
struct SuperScales {
  float d = 0;
  std::array<int, kGroups> levels{};
  float error = HUGE_VALF;
};

template <int kGroups, class Codes>
class SuperScaleSearch {
 public:
  static constexpr int kSize = 256 / kGroups;

  SuperScaleSearch(const Codes& codes, LevelRange range, const float* x, const float* w)
      : codes_(codes), range_(range), x_(x), w_(w) {
    for (int j = 0; j < kGroups; ++j) fits_[j] = SearchScale<kSize>(codes, Values(j), Weights(j));
  }

  HWY_NOINLINE SuperScales<kGroups> Run() {
    SuperScales<kGroups> best;
    float d = FirstD();
    for (int round = 0; round < 4; ++round) {
      const SuperScales<kGroups> next = ChooseLevels(d);
      if (next.error >= best.error) break;
      best = next;
      d = RefitD(next);
    }
    return best;
  }

 private:
  const float* Values(int j) const { return x_ + j * kSize; }
  const float* Weights(int j) const { return w_ + j * kSize; }

  // The largest scale gets a level from the lowest one to about half of it.
  float FirstD() const {
    float largest = 0;
    for (const ScaleFit& fit : fits_) {
      if (std::abs(fit.scale()) > std::abs(largest)) largest = fit.scale();
    }
    if (largest == 0) return 0;
    float best_d = 0;
    float least = HUGE_VALF;
    for (int k = -1; k < 24; ++k) {
      const float d = NearestHalf(
          largest / (static_cast<float>(range_.low) * (1 - 0.02f * static_cast<float>(k))));
      if (d == 0) continue;
      float error = 0;
      for (const ScaleFit& fit : fits_) {
        const float rest = fit.scale() - d * static_cast<float>(range_.Nearest(fit.scale() / d));
        error += fit.cc * rest * rest;
      }
      if (error < least) {
        least = error;
        best_d = d;
      }
    }
    return best_d;
  }

  SuperScales<kGroups> ChooseLevels(float d) {
    SuperScales<kGroups> out{d, {}, 0};
    for (int j = 0; j < kGroups; ++j) {
      const int nearest = d == 0 ? 0 : range_.Nearest(fits_[j].scale() / d);
      float least = HUGE_VALF;
      // The nearest first, so that a group of zeros has level 0 and decodes to +0.
      for (const int level : {nearest, nearest - 1, nearest + 1}) {
        if (level < range_.low || level > range_.high) continue;
        float unused[kSize];
        const float error =
            CodesAt<kSize>(codes_, Values(j), Weights(j), d * static_cast<float>(level), unused);
        if (error >= least) continue;
        least = error;
        out.levels[j] = level;
      }
      out.error += least;
    }
    return out;
  }

  // Replaces the fits by those of the codes, too.
  float RefitD(const SuperScales<kGroups>& scales) {
    double numerator = 0;
    double denominator = 0;
    for (int j = 0; j < kGroups; ++j) {
      const auto level = static_cast<float>(scales.levels[j]);
      fits_[j] = FitAt<kSize>(codes_, Values(j), Weights(j), scales.d * level);
      numerator += level * fits_[j].xc;
      denominator += level * level * fits_[j].cc;
    }
    return denominator > 0 ? NearestHalf(static_cast<float>(numerator / denominator)) : 0;
  }

  const Codes& codes_;
  const LevelRange range_;
  const float* x_;
  const float* w_;
  std::array<ScaleFit, kGroups> fits_;
};

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
