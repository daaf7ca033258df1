// Eight floats at a time, and sums in eight lanes: value i of a group in lane i % 8. Targets
// without vectors of eight use an array, so all targets add the same numbers in the same order.
// Included once per target.
#if defined(QLORA_GGML_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_LANES_INL_H_
#undef QLORA_GGML_LANES_INL_H_
#else
#define QLORA_GGML_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <array>

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kLanes8 = 8;

#if HWY_MAX_BYTES >= 32

using D8 = hn::FixedTag<float, kLanes8>;
using Lanes = hn::Vec<D8>;

HWY_INLINE Lanes Load8(const float* x) { return hn::LoadU(D8(), x); }
HWY_INLINE void Store8(Lanes v, float* out) { hn::StoreU(v, D8(), out); }
HWY_INLINE Lanes Set8(float x) { return hn::Set(D8(), x); }
HWY_INLINE Lanes Add8(Lanes a, Lanes b) { return hn::Add(a, b); }
HWY_INLINE Lanes Sub8(Lanes a, Lanes b) { return hn::Sub(a, b); }
HWY_INLINE Lanes Mul8(Lanes a, Lanes b) { return hn::Mul(a, b); }
HWY_INLINE Lanes Min8(Lanes a, Lanes b) { return hn::Min(a, b); }
HWY_INLINE Lanes Max8(Lanes a, Lanes b) { return hn::Max(a, b); }
// x > limit ? value : 0
HWY_INLINE Lanes IfAbove8(Lanes x, Lanes limit, Lanes value) {
  return hn::IfThenElseZero(hn::Gt(x, limit), value);
}

#else

using Lanes = std::array<float, kLanes8>;

template <class Function>
HWY_INLINE Lanes ForLanes(const Function& function) {
  Lanes out;
  for (int i = 0; i < kLanes8; ++i) out[i] = function(i);
  return out;
}

HWY_INLINE Lanes Load8(const float* x) {
  return ForLanes([&](int i) { return x[i]; });
}
HWY_INLINE void Store8(const Lanes& v, float* out) {
  for (int i = 0; i < kLanes8; ++i) out[i] = v[i];
}
HWY_INLINE Lanes Set8(float x) {
  return ForLanes([&](int) { return x; });
}
HWY_INLINE Lanes Add8(const Lanes& a, const Lanes& b) {
  return ForLanes([&](int i) { return a[i] + b[i]; });
}
HWY_INLINE Lanes Sub8(const Lanes& a, const Lanes& b) {
  return ForLanes([&](int i) { return a[i] - b[i]; });
}
HWY_INLINE Lanes Mul8(const Lanes& a, const Lanes& b) {
  return ForLanes([&](int i) { return a[i] * b[i]; });
}
HWY_INLINE Lanes Min8(const Lanes& a, const Lanes& b) {
  return ForLanes([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}
HWY_INLINE Lanes Max8(const Lanes& a, const Lanes& b) {
  return ForLanes([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
// x > limit ? value : 0
HWY_INLINE Lanes IfAbove8(const Lanes& x, const Lanes& limit, const Lanes& value) {
  return ForLanes([&](int i) { return x[i] > limit[i] ? value[i] : 0.0f; });
}

#endif

// The nearest integers, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits below 1.
HWY_INLINE Lanes Round8(Lanes x) {
  const Lanes shift = Set8(0x1.8p23f);
  return Sub8(Add8(x, shift), shift);
}

HWY_INLINE float Total8(Lanes v) {
  float sum[kLanes8];
  Store8(v, sum);
  for (int half = kLanes8 / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  return sum[0];
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
