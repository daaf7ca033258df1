// Encoders of the formats with one level of scales. Included once per target.
#if defined(QLORA_GGML_FLAT_ENCODERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_FLAT_ENCODERS_INL_H_
#undef QLORA_GGML_FLAT_ENCODERS_INL_H_
#else
#define QLORA_GGML_FLAT_ENCODERS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>

#include "ggml/affine_fit-inl.h"
#include "ggml/pack.h"
#include "ggml/scale_fit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

template <class Codes>
HWY_INLINE StoredFit<32> FitBlock(const Codes& codes, const float* x, const float* w) {
  return StoreScale<32>(codes, x, w, SearchScale<32>(codes, x, w).scale());
}

inline void EncodeQ4_0(const float* x, const float* w, std::byte* block) {
  const StoredFit<32> fit = FitBlock(EvenCodes{-8, 7}, x, w);
  StoreHalf(block, fit.scale);
  PackNibbles(CodeBytes<32>(fit.codes, 8).data(), 16, block + 2);
}

// The inverse of ForFiveBits.
HWY_INLINE void PackFiveBits(const std::array<std::uint8_t, 32>& codes, std::byte* out) {
  std::uint32_t high = 0;
  for (int i = 0; i < 32; ++i) high |= static_cast<std::uint32_t>(codes[i] >> 4) << i;
  StoreAt(out, high);
  PackNibbles(codes.data(), 16, out + 4);
}

inline void EncodeQ5_0(const float* x, const float* w, std::byte* block) {
  const StoredFit<32> fit = FitBlock(EvenCodes{-16, 15}, x, w);
  StoreHalf(block, fit.scale);
  PackFiveBits(CodeBytes<32>(fit.codes, 16), block + 2);
}

inline void EncodeIQ4_NL(const float* x, const float* w, std::byte* block) {
  const StoredFit<32> fit = FitBlock(kIq4Codes, x, w);
  StoreHalf(block, fit.scale);
  PackNibbles(PlacesIn<32>(kIq4Values, fit.codes).data(), 16, block + 2);
}

struct StoredAffine {
  float min = 0;
  StoredFit<32> fit;
};

// The minimum is rounded first; then the scale is fitted to what is above it.
HWY_NOINLINE StoredAffine FitAffineBlock(float levels, const float* x, const float* w) {
  const AffineFit exact = AffineGroup<32>(x, w, levels, kLargestHalf).Search();
  const EvenCodes codes{0, levels};
  StoredAffine best;
  best.fit.error = HUGE_VALF;
  for (const float min : HalvesAround(exact.min)) {
    float above[32];
    for (int i = 0; i < 32; ++i) above[i] = x[i] - min;
    const ScaleFit first = FitAt<32>(codes, above, w, exact.scale);
    const ScaleFit second = FitAt<32>(codes, above, w, first.scale());
    const StoredFit<32> fit = StoreScale<32>(codes, above, w, second.scale());
    if (fit.error < best.fit.error) best = {min, fit};
  }
  return best;
}

inline void EncodeQ4_1(const float* x, const float* w, std::byte* block) {
  const StoredAffine best = FitAffineBlock(15, x, w);
  StoreHalf(block, best.fit.scale);
  StoreHalf(block + 2, best.min);
  PackNibbles(CodeBytes<32>(best.fit.codes, 0).data(), 16, block + 4);
}

inline void EncodeQ5_1(const float* x, const float* w, std::byte* block) {
  const StoredAffine best = FitAffineBlock(31, x, w);
  StoreHalf(block, best.fit.scale);
  StoreHalf(block + 2, best.min);
  PackFiveBits(CodeBytes<32>(best.fit.codes, 0), block + 4);
}

// Half away from zero, for |x| < 2^31.
inline int RoundAway(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

// The largest magnitude gets code 127: with so many codes, a search gains little. The codes are
// those of the scale before it is rounded, which are llama.cpp's, unless its float16 is subnormal.
inline void EncodeQ8_0(const float* x, const float*, std::byte* block) {
  const float exact = LargestMagnitude<32>(x) / 127;
  const float stored = NearestHalf(exact);
  const float inverse = InverseOf(stored < 0x1p-14f ? stored : exact);
  StoreHalf(block, stored);
  for (int i = 0; i < 32; ++i) {
    StoreAt(block + 2 + i,
            static_cast<std::int8_t>(std::clamp(RoundAway(x[i] * inverse), -127, 127)));
  }
}

// The scale is a power of two, 2^(e - 128). Three are tried: one with which the largest magnitude
// is inside the codes, and two that cut off what is beyond 3/4 or 3/8 of its power of two.
inline void EncodeMXFP4(const float* x, const float* w, std::byte* block) {
  const float largest = LargestMagnitude<32>(x);
  int exponent = 0;
  std::frexp(largest, &exponent);
  // Within [-1, 1], so that inverses of scales are finite.
  float scaled[32];
  for (int i = 0; i < 32; ++i) scaled[i] = std::ldexp(x[i], -exponent);
  StoredFit<32> best;
  best.error = HUGE_VALF;
  int best_e = 0;
  for (const int power : {-4, -3, -5}) {
    const int e = std::clamp(power + exponent + 128, 0, 254);
    StoredFit<32> fit;
    fit.scale = std::ldexp(1.0f, e - 128 - exponent);
    fit.error = CodesAt<32>(kE2m1Codes, scaled, w, fit.scale, fit.codes);
    if (fit.error >= best.error) continue;
    best = fit;
    best_e = e;
  }
  block[0] = static_cast<std::byte>(largest == 0 ? 0 : best_e);
  PackNibbles(PlacesIn<32>(kE2m1Values, best.codes).data(), 16, block + 1);
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
