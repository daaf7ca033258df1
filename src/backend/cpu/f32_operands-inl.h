// What the float32 kernels read: elements, rounded to bfloat16 or not, and 4-bit blocks. Included
// once per target.
#if defined(QLORA_BACKEND_CPU_F32_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_F32_OPERANDS_INL_H_
#undef QLORA_BACKEND_CPU_F32_OPERANDS_INL_H_
#else
#define QLORA_BACKEND_CPU_F32_OPERANDS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "backend/cpu/lanes-inl.h"
#include "qlora/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// Operands rounded to bfloat16 (kRound) or not.
template <bool kRound, class D>
HWY_INLINE hn::Vec<D> Operand(D d, hn::Vec<D> v) {
  if constexpr (kRound) return RoundToBFloat16(d, v);
  return v;
}
template <bool kRound, class D>
HWY_INLINE hn::Vec<D> LoadOperand(D d, const void* row, DType dtype, std::size_t i) {
  return Operand<kRound>(d, LoadAs(d, row, dtype, i));
}

const void* RowOf(const ConstMatrixView& m, std::size_t row) {
  return static_cast<const char*>(m.data) +
         row * static_cast<std::size_t>(m.stride) * (m.dtype == DType::kF32 ? 4 : 2);
}

// The 16 values of a block, looked up by vectors of nibbles.
#if HWY_TARGET == HWY_AVX3
template <bool kRound>
class BlockTable {
 public:
  HWY_INLINE BlockTable(const float* code, float scale) {
    const FloatTag d;
    values_ = Operand<kRound>(d, hn::Mul(hn::LoadU(d, code), hn::Set(d, scale)));
  }

  // Decodes 2 * kLanes consecutive values: 8 of a word of 32 bits, in two halves of a vector.
  HWY_INLINE void Decode(const std::uint8_t* packed, float* out) const {
    const FloatTag d;
    // Columns 0, 1 ... of a word: a byte begins with its upper half.
    const __m256i word = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    const __m512i shifts = _mm512_broadcast_i64x4(word);
    for (std::size_t i = 0; i < 2; ++i, packed += 8, out += kLanes) {
      const __m512i words = _mm512_mask_broadcastd_epi32(
          _mm512_broadcastd_epi32(_mm_loadu_si32(packed)), 0xff00, _mm_loadu_si32(packed + 4));
      // Reads the lowest four bits of each lane.
      const auto values = _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), values_.raw);
      hn::StoreU(hn::Vec<FloatTag>{values}, d, out);
    }
  }

 private:
  hn::Vec<FloatTag> values_;
};
#else
template <bool kRound>
class BlockTable {
 public:
  HWY_INLINE BlockTable(const float* code, float scale) {
    ForEachVector(16, [&](auto tag, std::size_t i) HWY_ATTR {
      const auto value = hn::Mul(hn::LoadU(tag, code + i), hn::Set(tag, scale));
      hn::StoreU(Operand<kRound>(tag, value), tag, values_ + i);
    });
  }

  // Decodes 2 * kLanes consecutive values.
  HWY_INLINE void Decode(const std::uint8_t* packed, float* out) const {
    const hn::RebindToUnsigned<FloatTag> d32;
    const hn::Rebind<std::uint8_t, FloatTag> d8;
    const auto bytes = hn::PromoteTo(d32, hn::LoadU(d8, packed));
    const auto even = Lookup(hn::ShiftRight<4>(bytes));
    const auto odd = Lookup(hn::And(bytes, hn::Set(d32, 15)));
#if HWY_TARGET == HWY_SCALAR
    out[0] = hn::GetLane(even);
    out[1] = hn::GetLane(odd);
#else
    hn::StoreInterleaved2(even, odd, FloatTag(), out);
#endif
  }

 private:
  // index: lanes in [0, 16).
  template <class VU32>
  HWY_INLINE hn::Vec<FloatTag> Lookup(VU32 index) const {
    const FloatTag d;
#if HWY_TARGET == HWY_AVX2
    const hn::RebindToUnsigned<FloatTag> d32;
    const auto low = hn::IndicesFromVec(d, hn::And(index, hn::Set(d32, 7)));
    return hn::IfThenElse(hn::RebindMask(d, hn::TestBit(index, hn::Set(d32, 8))),
                          hn::TableLookupLanes(hn::Load(d, values_ + 8), low),
                          hn::TableLookupLanes(hn::Load(d, values_), low));
#else
    static_assert(kLanes == 1);
    return hn::Set(d, values_[hn::GetLane(index)]);
#endif
  }

  HWY_ALIGN float values_[16];
};
#endif

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_F32_OPERANDS_INL_H_
