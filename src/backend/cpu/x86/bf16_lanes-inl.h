// Loads of matrices as bfloat16, and the sums of a tile, for bf16*.cc, whose target options these
// functions share.
#ifndef QLORA_BACKEND_CPU_X86_BF16_LANES_INL_H_
#define QLORA_BACKEND_CPU_X86_BF16_LANES_INL_H_

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu {

inline __m256i ToBits(__m512 v) { return (__m256i)_mm512_cvtneps_pbh(v); }

// Elements [i, i + 16) of a row as bfloat16; those at or beyond the end of the row are zero.
inline __m256i LoadBits(const ConstMatrixView& m, Index row, Index i) {
  if (m.dtype == DType::kBF16) {
    return _mm256_maskz_loadu_epi16(FirstLanes(m.cols - i), Row16(m, row) + i);
  }
  return ToBits(LoadFloats(m, row, i));
}
// Elements [i, i + 32).
inline __m512i LoadBits32(const ConstMatrixView& m, Index row, Index i) {
  const __m512i low = _mm512_castsi256_si512(LoadBits(m, row, i));
  if (i + 16 >= m.cols) return _mm512_inserti64x4(low, _mm256_setzero_si256(), 1);
  return _mm512_inserti64x4(low, LoadBits(m, row, i + 16), 1);
}

// A tile of c, (kRows, kVectors * kVector), or zeros if it is not added to.
template <int kRows, int kVectors>
HWY_INLINE void LoadSums(const Product& p, const float* c, __m512 (&sum)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] =
          p.add ? _mm512_loadu_ps(c + r * p.c_stride + v * bf16::kVector) : _mm512_setzero_ps();
    }
  }
}
template <int kRows, int kVectors>
HWY_INLINE void StoreSums(const Product& p, const __m512 (&sum)[kRows][kVectors], float* c) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(c + r * p.c_stride + v * bf16::kVector, sum[r][v]);
    }
  }
}

// sum(r, lane) += pair_of(r) * lane, for one pair of values of k.
template <int kRows, int kVectors, class PairOf>
HWY_INLINE void AddPairs(const PairOf& pair_of, const __m512bh (&lane)[kVectors],
                         __m512 (&sum)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const auto value = (__m512bh)_mm512_set1_epi32(pair_of(r));
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], value, lane[v]);
  }
}
// The pair of values at `at` of a packed row.
HWY_INLINE int PairAt(const std::uint16_t* at) {
  int pair;
  __builtin_memcpy(&pair, at, sizeof(pair));
  return pair;
}

}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES

#endif  // QLORA_BACKEND_CPU_X86_BF16_LANES_INL_H_
