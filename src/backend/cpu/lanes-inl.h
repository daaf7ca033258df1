// Vectors of float32 lanes over rows of float32, bfloat16 or float16 elements. The .cc files with
// vector code include this once per target: foreach_target.h compiles them again for each.
#if defined(QLORA_BACKEND_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_LANES_INL_H_
#undef QLORA_BACKEND_CPU_LANES_INL_H_
#else
#define QLORA_BACKEND_CPU_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "qlora/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
inline constexpr std::int64_t kLanes = hn::MaxLanes(FloatTag());

// Elements i, i + 1 ... of a row.
template <class D>
HWY_INLINE hn::Vec<D> LoadAs(D d, const void* row, DType dtype, std::int64_t i) {
  if (dtype == DType::kF32) return hn::LoadU(d, static_cast<const float*>(row) + i);
  if (dtype == DType::kBF16) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    const auto bits = hn::LoadU(d16, static_cast<const std::uint16_t*>(row) + i);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, static_cast<const hwy::float16_t*>(row) + i));
}

// The upper 16 bits hold the nearest bfloat16 (even on a tie), NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint32_t, D>> BFloat16Bits(D /*d*/, hn::Vec<D> v) {
  const hn::Rebind<std::uint32_t, D> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
}

template <class D>
HWY_INLINE hn::Vec<D> RoundToBFloat16(D d, hn::Vec<D> v) {
  const hn::Rebind<std::uint32_t, D> d32;
  return hn::BitCast(d, hn::And(BFloat16Bits(d, v), hn::Set(d32, 0xffff0000u)));
}

// Stores as float32 or bfloat16.
template <class D>
HWY_INLINE void StoreAs(D d, hn::Vec<D> v, void* row, DType dtype, std::int64_t i) {
  if (dtype == DType::kF32) {
    hn::StoreU(v, d, static_cast<float*>(row) + i);
    return;
  }
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::int32_t, D> d32;
  const auto high = hn::BitCast(d32, hn::ShiftRight<16>(BFloat16Bits(d, v)));
  hn::StoreU(hn::DemoteTo(d16, high), d16, static_cast<std::uint16_t*>(row) + i);
}

// Row `row` of a matrix of one of these types.
inline const void* RowOf(const ConstMatrixView& m, std::int64_t row) {
  return static_cast<const char*>(m.data) + row * m.stride * (m.dtype == DType::kF32 ? 4 : 2);
}

// A row of a matrix, read as float32 lanes.
class ConstRow {
 public:
  ConstRow(const ConstMatrixView& m, std::int64_t row) : data_(RowOf(m, row)), dtype_(m.dtype) {}
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, std::int64_t i) const {
    return LoadAs(d, data_, dtype_, i);
  }

 protected:
  const void* data_;
  DType dtype_;
};

// The same, and written.
class Row : public ConstRow {
 public:
  Row(const MatrixView& m, std::int64_t row) : ConstRow(m, row) {}
  template <class D>
  HWY_INLINE void Store(D d, hn::Vec<D> v, std::int64_t i) const {
    StoreAs(d, v, const_cast<void*>(data_), dtype_, i);
  }
};

// Reductions over the elements that ForEachVector visits, in a fixed order: lanes first, then the
// rest.
class Sum {
 public:
  HWY_INLINE Sum() : lanes_(hn::Zero(FloatTag())) {}
  template <class D>
  HWY_INLINE void MulAdd(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (hn::MaxLanes(D()) == kLanes) {
      lanes_ = hn::MulAdd(a, b, lanes_);
    } else {
      rest_ += hn::GetLane(hn::Mul(a, b));
    }
  }
  template <class D>
  HWY_INLINE void Add(D d, hn::Vec<D> a) {
    MulAdd(d, a, hn::Set(d, 1.0f));
  }
  HWY_INLINE float Total() const { return hn::GetLane(hn::SumOfLanes(FloatTag(), lanes_)) + rest_; }

 private:
  hn::Vec<FloatTag> lanes_;
  float rest_ = 0;
};

class Largest {
 public:
  HWY_INLINE Largest() : lanes_(hn::Set(FloatTag(), rest_)) {}
  template <class D>
  HWY_INLINE void Add(D, hn::Vec<D> a) {
    if constexpr (hn::MaxLanes(D()) == kLanes) {
      lanes_ = hn::Max(a, lanes_);
    } else {
      rest_ = std::max(rest_, hn::GetLane(a));
    }
  }
  HWY_INLINE float Total() const {
    return std::max(rest_, hn::GetLane(hn::MaxOfLanes(FloatTag(), lanes_)));
  }

 private:
  float rest_ = -std::numeric_limits<float>::infinity();
  hn::Vec<FloatTag> lanes_;
};

// Calls body(d, i) for i = 0 ... n - 1, whole vectors first and then single lanes:
//   [0 ... kLanes) [kLanes ... 2 kLanes) ... [i) [i + 1) ... [n - 1)
template <class Body>
HWY_INLINE void ForEachVector(std::int64_t n, Body&& body) {
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(d, i);
  for (; i < n; ++i) body(d1, i);
}

// out[j * stride + i] = lane j of v[i], for i < 4.
HWY_INLINE void StoreColumns(const hn::Vec<FloatTag> (&v)[4], float* out, std::int64_t stride) {
#if HWY_TARGET == HWY_SCALAR
  (void)stride;
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(v[i]);
#else
  const FloatTag d;
  const hn::CappedTag<float, 4> d4;
  HWY_ALIGN float four[4 * kLanes];
  hn::StoreInterleaved4(v[0], v[1], v[2], v[3], d, four);
  for (std::int64_t j = 0; j < kLanes; ++j) {
    hn::StoreU(hn::LoadU(d4, four + 4 * j), d4, out + j * stride);
  }
#endif
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_LANES_INL_H_
