// Vectors of values to counts of thresholds: the decision of 4-bit encoding. Included once per
// target.
#if defined(QLORA_QUANT_COUNT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_QUANT_COUNT_INL_H_
#undef QLORA_QUANT_COUNT_INL_H_
#else
#define QLORA_QUANT_COUNT_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <bit>
#include <cstdint>

#include "quant/encode_table.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_MAX_BYTES >= 32

using D = hn::ScalableTag<float>;
using D32 = hn::Rebind<std::uint32_t, D>;
using DI32 = hn::Rebind<std::int32_t, D>;
constexpr D d;
constexpr D32 du32;
constexpr DI32 di32;
using V = hn::Vec<D>;
using VI = hn::Vec<DI32>;
constexpr std::int64_t kLanes = hn::MaxLanes(D());

// values[k] of the 16 values in `low` and `high` (vectors of 16 lanes: in `low`); k in [0, 16).
HWY_INLINE V Lookup16(V low, V high, VI k) {
#if HWY_TARGET == HWY_AVX2
  const auto in_half = hn::IndicesFromVec(d, hn::And(k, hn::Set(di32, 7)));
  const auto upper = hn::BitCast(d, hn::ShiftLeft<28>(k));  // bit 3 becomes the sign
  return hn::IfNegativeThenElse(upper, hn::TableLookupLanes(high, in_half),
                                hn::TableLookupLanes(low, in_half));
#else
  static_assert(kLanes == 16);
  (void)high;
  return hn::TableLookupLanes(low, hn::IndicesFromVec(d, k));
#endif
}

#if HWY_TARGET == HWY_AVX2

// The number of NF4 thresholds below x, by the line of IsNearLine. Adding kAligned leaves the sum
// in steps of 1/16: its bits from 4 up are kBase and the integer part.
constexpr float kAligned = 0x1.8p19f;
constexpr std::int32_t kBase = std::bit_cast<std::int32_t>(kAligned) >> 4;

class Nf4Counter {
 public:
  explicit HWY_INLINE Nf4Counter(const EncodeTable& table)
      : low_(hn::LoadU(d, table.thresholds.data())),
        high_(hn::MaskedLoad(hn::FirstN(d, 7), d, table.thresholds.data() + 8)) {}
  HWY_INLINE VI operator()(V x) const {
    const auto sum = hn::MulAdd(x, hn::Set(d, kLineSlope), hn::Set(d, kAligned + kLineIntercept));
    const auto cut = hn::Min(hn::Max(sum, hn::Set(d, kAligned)), hn::Set(d, kAligned + 14));
    const auto k = hn::ShiftRight<4>(hn::BitCast(di32, cut));  // plus kBase
    const V threshold = Lookup16(low_, high_, k);              // the bits of kBase do not matter
    const auto above = hn::RebindMask(di32, hn::Gt(x, threshold));
    return hn::Sub(k, hn::IfThenElse(above, hn::Set(di32, kBase - 1), hn::Set(di32, kBase)));
  }
  // The count is the code.
  HWY_INLINE void ToCodes(std::uint8_t*, std::int64_t) const {}

 private:
  V low_;
  V high_;
};

#else

// The number of NF4 thresholds below x in [-1, 1] (up to rounding), by the cells of ThresholdGrid.
// The lower five bits of the sum are the cell.
constexpr float kCellOrigin = 0x1.8p23f + 16;

class Nf4Counter {
 public:
  explicit HWY_INLINE Nf4Counter(const EncodeTable& table)
      : threshold0_(hn::Load(d, table.grid.threshold.data())),
        threshold1_(hn::Load(d, table.grid.threshold.data() + 16)),
        below0_(hn::Load(di32, table.grid.below.data())),
        below1_(hn::Load(di32, table.grid.below.data() + 16)) {}
  HWY_INLINE VI operator()(V x) const {
    const auto cell = hn::BitCast(di32, hn::MulAdd(x, cells_per_unit_, origin_));
    // Highway 1.0 has no lookup in two vectors.
    const V threshold{_mm512_permutex2var_ps(threshold0_.raw, cell.raw, threshold1_.raw)};
    const VI below{_mm512_permutex2var_epi32(below0_.raw, cell.raw, below1_.raw)};
    const auto above = hn::RebindMask(di32, hn::Gt(x, threshold));
    return hn::IfThenElse(above, hn::Add(below, one_), below);
  }
  // The count is the code.
  HWY_INLINE void ToCodes(std::uint8_t*, std::int64_t) const {}

 private:
  V threshold0_;
  V threshold1_;
  VI below0_;
  VI below1_;
  // Members, so that the compiler does not make them again for every block.
  V cells_per_unit_ = hn::Set(d, ThresholdGrid::kCellsPerUnit);
  V origin_ = hn::Set(d, kCellOrigin);
  VI one_ = hn::Set(di32, 1);
};

#endif

HWY_INLINE VI CountIf(hn::Mask<D> mask, VI base) {
  return hn::Sub(base, hn::VecFromMask(di32, hn::RebindMask(di32, mask)));
}

// The same for any x: thresholds are within [-1, 1].
class CutCounter : public Nf4Counter {
 public:
  explicit HWY_INLINE CutCounter(const EncodeTable& table) : Nf4Counter(table) {}
  HWY_INLINE VI operator()(V x) const {
    const V cut = hn::Min(hn::Max(x, hn::Set(d, -1.0f)), hn::Set(d, 1.0f));
    return Inside(cut);
  }
  HWY_INLINE VI Inside(V x) const { return Nf4Counter::operator()(x); }
};

// The same for any thresholds, by comparing with all of them; and codes in any order.
class AnyCounter {
 public:
  explicit AnyCounter(const EncodeTable& table) : thresholds_(table.thresholds) {
    for (std::size_t i = 0; i < map_.size(); ++i) {
      map_[i] = static_cast<std::uint8_t>(table.codes[i >> 4] << 4 | table.codes[i & 15]);
    }
  }
  HWY_INLINE VI operator()(V x) const {
    auto count = hn::Zero(di32);
    for (const float t : thresholds_) count = CountIf(hn::Gt(x, hn::Set(d, t)), count);
    return count;
  }
  HWY_INLINE VI Inside(V x) const { return operator()(x); }
  HWY_INLINE void ToCodes(std::uint8_t* packed, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) packed[i] = map_[packed[i]];
  }

 private:
  std::array<float, 15> thresholds_;
  std::array<std::uint8_t, 256> map_;
};

#endif

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
