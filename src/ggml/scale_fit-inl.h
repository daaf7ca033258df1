// Scales of groups whose values are scale * c, with c from a fixed set of codes.
//
// For given codes the best scale is a least squares solution, and for a given scale the best codes
// are the nearest ones. With weights w, X = sum of w x c and C = sum of w c^2:
//   scale = X / C,    sum of w (x - scale c)^2 = sum of w x^2 - X^2 / C
// So X^2 / C, the gain, is what a search makes large. Each step from scale to codes and back
// increases it, up to the nearest of many maxima; the search starts from a grid of scales. Included
// once per target.
#if defined(QLORA_GGML_SCALE_FIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_SCALE_FIT_INL_H_
#undef QLORA_GGML_SCALE_FIT_INL_H_
#else
#define QLORA_GGML_SCALE_FIT_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>

#include "ggml/codebooks.h"
#include "ggml/lanes-inl.h"
#include "ggml/stored_scale.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

// Codes low, low + 1 ... high.
struct EvenCodes {
  float low;
  float high;

  HWY_INLINE Lanes Nearest(Lanes x) const { return Round8(Min8(Max8(x, Set8(low)), Set8(high))); }
  float reach() const { return -low; }
};

// The values of a table as codes.
template <std::size_t kCount>
struct TableCodes {
  std::array<float, kCount> values;  // ascending

  HWY_INLINE Lanes Nearest(Lanes x) const {
    Lanes nearest = Set8(values[0]);
    for (std::size_t k = 1; k < kCount; ++k) {
      const float middle = 0.5f * (values[k - 1] + values[k]);
      const float step = values[k] - values[k - 1];
      nearest = Add8(nearest, IfAbove8(x, Set8(middle), Set8(step)));
    }
    return nearest;
  }
  float reach() const { return -values[0]; }
};

// kCount: of the different values of the book.
template <std::size_t kCount>
constexpr TableCodes<kCount> SortedValues(Codebook book) {
  std::sort(book.begin(), book.end());
  static_cast<void>(std::unique(book.begin(), book.end()));
  TableCodes<kCount> codes{};
  for (std::size_t k = 0; k < kCount; ++k) codes.values[k] = book[k];
  return codes;
}
inline constexpr auto kIq4Codes = SortedValues<16>(kIq4Values);
inline constexpr auto kE2m1Codes = SortedValues<15>(kE2m1Values);

struct ScaleFit {
  float xc = 0;  // sum of w x c
  float cc = 0;  // sum of w c^2

  float gain() const { return cc > 0 ? xc / cc * xc : 0; }
  float scale() const { return cc > 0 ? xc / cc : 0; }
};

// The fit to the codes that are nearest with that scale.
template <int kSize, class Codes>
HWY_INLINE ScaleFit FitAt(const Codes& codes, const float* x, const float* w, float scale) {
  const Lanes inverse = Set8(InverseOf(scale));
  Lanes xc = Set8(0);
  Lanes cc = Set8(0);
  for (int i = 0; i < kSize; i += kLanes8) {
    const Lanes xi = Load8(x + i);
    const Lanes c = codes.Nearest(Mul8(xi, inverse));
    const Lanes wc = Mul8(Load8(w + i), c);
    xc = Add8(xc, Mul8(wc, xi));
    cc = Add8(cc, Mul8(wc, c));
  }
  return {Total8(xc), Total8(cc)};
}

// The codes that are nearest with that scale, and their error: the sum of w (x - scale c)^2.
template <int kSize, class Codes>
HWY_INLINE float CodesAt(const Codes& codes, const float* x, const float* w, float scale,
                         float* out) {
  const Lanes inverse = Set8(InverseOf(scale));
  Lanes error = Set8(0);
  for (int i = 0; i < kSize; i += kLanes8) {
    const Lanes xi = Load8(x + i);
    const Lanes c = codes.Nearest(Mul8(xi, inverse));
    const Lanes rest = Sub8(xi, Mul8(Set8(scale), c));
    error = Add8(error, Mul8(Mul8(Load8(w + i), rest), rest));
    Store8(c, out + i);
  }
  return Total8(error);
}

template <int kSize>
HWY_INLINE float LargestMagnitude(const float* x) {
  Lanes largest = Set8(0);
  for (int i = 0; i < kSize; i += kLanes8) {
    const Lanes xi = Load8(x + i);
    largest = Max8(largest, Max8(xi, Sub8(Set8(0), xi)));
  }
  float lanes[kLanes8];
  Store8(largest, lanes);
  return *std::max_element(lanes, lanes + kLanes8);
}

// A float16 scale, the codes that are nearest with it, and their error.
template <int kSize>
struct StoredFit {
  float scale = 0;
  float error = 0;
  float codes[kSize];
};

// The best of the float16 around a scale: where they are subnormal, the nearest need not be it.
template <int kSize, class Codes>
HWY_INLINE StoredFit<kSize> StoreScale(const Codes& codes, const float* x, const float* w,
                                       float scale) {
  StoredFit<kSize> best;
  best.error = HUGE_VALF;
  for (const float half : HalvesAround(scale)) {
    StoredFit<kSize> fit;
    fit.scale = half;
    fit.error = CodesAt<kSize>(codes, x, w, half, fit.codes);
    if (fit.error < best.error) best = fit;
  }
  return best;
}

// Tries scales that put the largest magnitude on codes around the last ones, on either side. Some
// are far smaller, because cutting off a value that matters little may serve the others.
template <int kSize, class Codes>
HWY_NOINLINE ScaleFit SearchScale(const Codes& codes, const float* x, const float* w) {
  const float largest = LargestMagnitude<kSize>(x);
  if (largest < 1e-15f) return {};
  ScaleFit best;
  const auto keep = [&](const ScaleFit& fit) {
    if (fit.gain() > best.gain() * kClearly) best = fit;
  };
  const float scale = largest / codes.reach();
  for (const float cut :
       {0.70f, 0.73f, 0.76f, 0.79f, 0.82f, 0.85f, 0.88f, 0.91f, 0.94f, 0.97f, 1.0f,
        1.03f, 1.06f, 1.09f, 1.12f, 1.15f, 1.18f, 1.21f, 1.24f, 1.4f,  1.7f,  2.0f}) {
    keep(FitAt<kSize>(codes, x, w, scale / cut));
    keep(FitAt<kSize>(codes, x, w, -scale / cut));
  }
  for (int step = 0; step < 2; ++step) keep(FitAt<kSize>(codes, x, w, best.scale()));
  return best;
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
