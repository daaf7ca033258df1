// How 4-bit values become codes of 8 bits, for coded_chunks.cc and dot products.
#if defined(QLORA_BACKEND_CPU_INT8_CHUNK_CODER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_INT8_CHUNK_CODER_INL_H_
#undef QLORA_BACKEND_CPU_INT8_CHUNK_CODER_INL_H_
#else
#define QLORA_BACKEND_CPU_INT8_CHUNK_CODER_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "backend/cpu/gemm/format.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/int8/codes.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// A number that float32 holds to a unit: sums with it are rounded to whole numbers, the lowest byte
// of which is the code + offset.
HWY_INLINE float Rounder(std::uint8_t offset) { return 0x1.8p23f + static_cast<float>(offset); }

// Words of value * factor, clamped if need be, + rounder: their lowest bytes are codes.
template <bool kClamps, class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint32_t, D>> Rounded(D d, hn::Vec<D> value, hn::Vec<D> factor,
                                                         hn::Vec<D> rounder) {
  const auto most = hn::Set(d, int8::kLargestCode);
  const auto least = hn::Set(d, -int8::kLargestCode);
  auto code = hn::Mul(value, factor);
  if (kClamps) code = hn::Max(hn::Min(code, most), least);
  return hn::BitCast(hn::Rebind<std::uint32_t, D>(), hn::Add(code, rounder));
}
template <bool kClamps, class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint8_t, D>> RoundedBytes(D d, hn::Vec<D> value,
                                                             hn::Vec<D> factor,
                                                             hn::Vec<D> rounder) {
  return hn::TruncateTo(hn::Rebind<std::uint8_t, D>(), Rounded<kClamps>(d, value, factor, rounder));
}

// Codes whole chunks with the codes of a table for each, one or two at a time, in paired order.
template <bool kClamps>
class Coder {
 public:
  HWY_INLINE Coder(const float* code, std::uint8_t offset)
      : code_(code), rounder_(Rounder(offset)) {}

  HWY_INLINE void operator()(const std::uint8_t* packed, const float* factors, std::int64_t chunks,
                             std::uint8_t* out) const {
    // A vector of AVX-512 holds both chunks.
    if (HWY_TARGET == HWY_AVX3 && chunks == 2) {
      return LookUp(hn::CappedTag<std::uint8_t, 2 * kChunkBytes>(), packed, factors, kChunk, out);
    }
    for (std::int64_t c = 0; c < chunks; ++c) {
      LookUp(hn::CappedTag<std::uint8_t, kChunkBytes>(), packed + c * kChunkBytes, factors + c,
             chunks * kChunkBytes, out + c * kChunkBytes);
    }
  }

 private:
#if HWY_TARGET == HWY_SCALAR
  template <class D>
  HWY_INLINE void LookUp(D, const std::uint8_t* packed, const float* factor, std::int64_t half,
                         std::uint8_t* out) const {
    const hn::CappedTag<float, 1> d;
    std::uint8_t table[16];
    for (std::int64_t i = 0; i < 16; ++i) {
      table[i] = hn::GetLane(RoundedBytes<kClamps>(d, hn::Set(d, code_[i]), hn::Set(d, *factor),
                                                   hn::Set(d, rounder_)));
    }
    for (std::int64_t i = 0; i < kChunkBytes; ++i) {
      out[i] = table[packed[i] >> 4];
      out[half + i] = table[packed[i] & 15];
    }
  }
#else
  // The first of two values is in the upper half of its byte. Values of D are one vector, which has
  // a factor for each chunk, or parts of a chunk.
  template <class D>
  HWY_INLINE void LookUp(D d, const std::uint8_t* packed, const float* factors, std::int64_t half,
                         std::uint8_t* out) const {
    constexpr std::int64_t kBytes = hn::MaxLanes(d);
    const auto table = Table(d, factors);
    for (std::int64_t i = 0; i < std::max(kBytes, kChunkBytes); i += kBytes) {
      const auto values = hn::LoadU(d, packed + i);
      const auto second = hn::And(values, hn::Set(d, 0x0f));
      hn::StoreU(hn::TableLookupBytes(table, hn::ShiftRight<4>(values)), d, out + i);
      hn::StoreU(hn::TableLookupBytes(table, second), d, out + half + i);
    }
  }

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  // Two vectors of words become a table in each block of 16 bytes:
  //   words          | p0 . . . | p1 ...      and of q; AVX2: the halves of one table, AVX-512: two
  //   both           | p0 . q0 . | p1 . q1 .  | ...
  //   in each block  | p0 p1 p2 p3 | q0 q1 q2 q3 | ...
  template <class D>
  HWY_INLINE hn::Vec<D> Table(D d, const float* factors) const {
    const FloatTag f;
    const hn::Repartition<std::uint8_t, FloatTag> d8;
    const hn::Repartition<std::uint16_t, FloatTag> d16;
    const hn::RebindToUnsigned<FloatTag> d32;
    constexpr bool kTwo = hn::MaxLanes(D()) > kChunkBytes;
    const auto rounder = hn::Set(f, rounder_);
    const auto p = Rounded<kClamps>(f, hn::LoadU(f, code_), hn::Set(f, factors[0]), rounder);
    const auto q =
        Rounded<kClamps>(f, hn::LoadU(f, code_ + 16 - kLanes), hn::Set(f, factors[kTwo]), rounder);
    const auto both = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(q)), hn::BitCast(d16, p));
    alignas(16) static constexpr std::uint8_t kBytes[16] = {0, 4, 8, 12, 2, 6, 10, 14};
    const auto blocks = hn::TableLookupBytes(hn::BitCast(d8, both), hn::LoadDup128(d8, kBytes));
    alignas(64) static constexpr std::int32_t kTwoTables[16] = {0, 4, 8, 12, 0, 4, 8, 12,
                                                                1, 5, 9, 13, 1, 5, 9, 13};
    alignas(64) static constexpr std::int32_t kTwoHalves[8] = {0, 4, 1, 5, 0, 4, 1, 5};
    const auto order = hn::SetTableIndices(d32, kLanes == 16 ? kTwoTables : kTwoHalves);
    const auto tables = hn::BitCast(d8, hn::TableLookupLanes(hn::BitCast(d32, blocks), order));
    if constexpr (hn::MaxLanes(D()) == hn::MaxLanes(d8)) {
      return tables;
    } else {
      return hn::LowerHalf(d, tables);
    }
  }
#else
  template <class D>
  HWY_INLINE hn::Vec<D> Table(D d, const float* factor) const {
    const FloatTag f;
    const hn::Rebind<std::uint8_t, FloatTag> part;
    HWY_ALIGN std::uint8_t table[16];
    for (std::int64_t i = 0; i < 16; i += kLanes) {
      hn::StoreU(RoundedBytes<kClamps>(f, hn::LoadU(f, code_ + i), hn::Set(f, *factor),
                                       hn::Set(f, rounder_)),
                 part, table + i);
    }
    return hn::LoadDup128(d, table);
  }
#endif
#endif

  const float* code_;
  float rounder_;
};

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_INT8_CHUNK_CODER_INL_H_
