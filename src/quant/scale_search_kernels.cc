// The kernel of the scale search (scale_search.h), compiled once per target. Sums run in 16 lanes,
// value i in lane i % 16, and fold by halves: all targets add the same numbers in the same order.
//
// For a multiplier m of the absmax, with x the values divided by the absmax, w their weights and
// v[i] the value whose code x[i] / m takes, the error is
//   E(m) = sum of w[i] (x[i] - m v[i])^2.
// The codes change with m in steps. So E is tried on a grid, and then at the m that is best for the
// codes of the best grid point, where dE/dm = 0: m = (sum of w x v) / (sum of w v^2).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/scale_search_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <array>

#include "quant/kernels.h"
// Once per target.
#include "quant/count-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

// The values of a codebook in ascending order, by count of thresholds.
inline std::array<float, 16> SortedValues(const SearchRun& run) {
  std::array<float, 16> values;
  for (std::size_t k = 0; k < 16; ++k) values[k] = run.code[run.table->codes[k]];
  return values;
}

struct Fit {
  float error;        // sum of w (x - m v)^2
  float numerator;    // sum of w x v
  float denominator;  // sum of w v^2: the m that suits the codes best is the quotient
};

#if HWY_MAX_BYTES < 32

class Evaluator {
 public:
  explicit Evaluator(const SearchRun& run)
      : run_(run), table_(*run.table), values_(SortedValues(run)) {}

  template <bool kQuotient, bool>
  Fit At(float m) const {
    std::array<float, 16> error{}, numerator{}, denominator{};
    const float inverse = 1.0f / m;
    for (std::int64_t i = 0; i < run_.n; ++i) {
      const float x = run_.x[i];
      const float w = run_.weights == nullptr ? 1.0f : run_.weights[i];
      std::size_t count = 0;
      for (const float t : table_.thresholds) count += x * inverse > t;
      const float v = values_[count];
      const float difference = x - m * v;
      const auto lane = static_cast<std::size_t>(i % 16);
      error[lane] += difference * difference * w;
      if constexpr (kQuotient) {
        numerator[lane] += x * v * w;
        denominator[lane] += v * v * w;
      }
    }
    return {Fold(error), Fold(numerator), Fold(denominator)};
  }

 private:
  static float Fold(std::array<float, 16> lanes) {
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }

  const SearchRun& run_;
  const EncodeTable& table_;
  std::array<float, 16> values_;
};

#else

// Sixteen float lanes.
struct Lanes {
  static constexpr std::int64_t kVectors = 16 / kLanes;
  V v[kVectors];

  HWY_INLINE Lanes() {
    for (V& part : v) part = hn::Zero(d);
  }
  HWY_INLINE float Fold() const {
#if HWY_TARGET == HWY_AVX2
    const auto eight = hn::Add(v[0], v[1]);
#else
    const hn::Half<D> d_half;
    const auto eight = hn::Add(hn::LowerHalf(d_half, v[0]), hn::UpperHalf(d_half, v[0]));
#endif
    const hn::FixedTag<float, 4> d4;
    const auto four = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
    const auto two = hn::Add(four, hn::Shuffle1032(four));
    return hn::GetLane(hn::Add(two, hn::Shuffle2301(two)));
  }
};

template <class Counter, bool kWeighted>
class Evaluator {
 public:
  HWY_INLINE Evaluator(const SearchRun& run, const Counter& count)
      : run_(run), count_(count), values_(SortedValues(run)) {}

  // kInside: m is at least 1, so that no x / m leaves [-1, 1].
  template <bool kQuotient, bool kInside>
  HWY_INLINE Fit At(float m) const {
    Lanes error, numerator, denominator;
    const V inverse = hn::Set(d, 1.0f / m);
    const V multiplier = hn::Set(d, m);
    const V low = hn::LoadU(d, values_.data());
    const V high = hn::LoadU(d, values_.data() + 16 - kLanes);
    for (std::int64_t i = 0; i < run_.n; i += 16) {
      for (std::int64_t part = 0; part < Lanes::kVectors; ++part) {
        const std::int64_t at = i + part * kLanes;
        const V x = hn::LoadU(d, run_.x + at);
        const V scaled = hn::Mul(x, inverse);
        const V v = Lookup16(low, high, kInside ? count_.Inside(scaled) : count_(scaled));
        const V difference = hn::Sub(x, hn::Mul(multiplier, v));
        error.v[part] = hn::Add(error.v[part], Weighted(hn::Mul(difference, difference), at));
        if constexpr (kQuotient) {
          numerator.v[part] = hn::Add(numerator.v[part], Weighted(hn::Mul(x, v), at));
          denominator.v[part] = hn::Add(denominator.v[part], Weighted(hn::Mul(v, v), at));
        }
      }
    }
    if constexpr (!kQuotient) return {error.Fold(), 0, 0};
    return {error.Fold(), numerator.Fold(), denominator.Fold()};
  }

 private:
  HWY_INLINE V Weighted(V term, std::int64_t at) const {
    return kWeighted ? hn::Mul(term, hn::LoadU(d, run_.weights + at)) : term;
  }

  const SearchRun& run_;
  const Counter count_;
  const std::array<float, 16> values_;
};

#endif

// 0.80, 0.84 ... 1.48, with 1 among them: below, because cutting off the largest values may serve
// the others; above, because the largest value may suit a code that is not the last. The step is
// fine enough that the least squares of the best codes find the multipliers between.
constexpr int kFirst = 20;
constexpr int kOne = 25;
constexpr int kLast = 37;
constexpr float kStep = 0.04f;
static_assert(kOne * kStep == 1.0f);

template <class Evaluator>
HWY_NOINLINE float Minimize(const Evaluator& evaluator) {
  float best = 1;
  float least = evaluator.template At<false, true>(best).error;
  const auto keep = [&](float m, const Fit& fit) {
    if (fit.error < least) {
      least = fit.error;
      best = m;
    }
  };
  for (int k = kFirst; k < kOne; ++k) {
    const float m = static_cast<float>(k) * kStep;
    keep(m, evaluator.template At<false, false>(m));
  }
  for (int k = kOne + 1; k <= kLast; ++k) {
    const float m = static_cast<float>(k) * kStep;
    keep(m, evaluator.template At<false, true>(m));
  }
  const Fit fit = evaluator.template At<true, false>(best);
  // Without a value in any code except the code of 0 the quotient is NaN, and then not sane.
  const float refined = fit.numerator / fit.denominator;
  const bool sane = refined > kFirst * kStep / 2 && refined < 2 * kLast * kStep;
  if (sane) keep(refined, evaluator.template At<false, false>(refined));
  return best;
}

#if HWY_MAX_BYTES < 32
float BestMultiplierOn(const SearchRun& run) { return Minimize(Evaluator(run)); }
#else
template <class Counter>
float BestMultiplierWith(const SearchRun& run, const Counter& count) {
  if (run.weights == nullptr) return Minimize(Evaluator<Counter, false>(run, count));
  return Minimize(Evaluator<Counter, true>(run, count));
}

float BestMultiplierOn(const SearchRun& run) {
  if (run.table->one_comparison) return BestMultiplierWith(run, CutCounter(*run.table));
  return BestMultiplierWith(run, AnyCounter(*run.table));
}
#endif

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora {

HWY_EXPORT(BestMultiplierOn);
float BestMultiplier(const SearchRun& run) { return HWY_DYNAMIC_DISPATCH(BestMultiplierOn)(run); }

}  // namespace qlora
#endif
