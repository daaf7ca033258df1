// 4-bit values of prepacked weights as pairs of bfloat16, two columns of 16 rows at a time. Values
// are rounded to bfloat16 before they are scaled instead of afterwards: the same relative error.
//
// Included by .cc files among their own target options, after the headers that it needs.
#ifndef QLORA_BACKEND_CPU_X86_PAIR_VALUES_INL_H_
#define QLORA_BACKEND_CPU_X86_PAIR_VALUES_INL_H_

#include "backend/cpu/x86/avx512-inl.h"

namespace qlora::cpu {
namespace {

// Pairs of columns: nibble `step` of both halves of a word of 32 bits.
struct PairValues {
  static constexpr int kSteps = 4;
  static constexpr int kMost = 12;

  HWY_INLINE explicit PairValues(const float* code)
      // Twice, because bit 4 of an index means nothing.
      : table(_mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(code)))) {}
  static HWY_INLINE __m512i Load(const std::byte* at, int) { return _mm512_load_si512(at); }
  HWY_INLINE __m512bh Lookup(__m512i words, int step) const {
    return (__m512bh)_mm512_permutexvar_epi16(
        _mm512_srli_epi16(words, static_cast<unsigned>(4 * step)), table);
  }
  static HWY_INLINE __m512 MulAdd(__m512 sum, __m512bh values, const float* x) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return _mm512_dpbf16_ps(sum, values, (__m512bh)_mm512_set1_epi32(pair));
  }
  // The columns of x that meet these values, for 32 of them: of every 8 columns 1, 5, 0, 4, 3, 7,
  // 2, 6, nibble n of both halves of a word of 32 bits, for n = 0 ... 3.
  static HWY_INLINE __m512i Order() {
    constexpr long long kEights = 0x0008000800080008;  // 8 in every word
    return _mm512_add_epi16(_mm512_broadcast_i32x4(_mm_setr_epi16(1, 5, 0, 4, 3, 7, 2, 6)),
                            _mm512_setr_epi64(0, 0, kEights, kEights, 2 * kEights, 2 * kEights,
                                              3 * kEights, 3 * kEights));
  }

  __m512i table;
};

}  // namespace
}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_X86_PAIR_VALUES_INL_H_
