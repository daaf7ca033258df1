// Loads of matrices as bfloat16, and the sums of a tile, for kernels_bf16*.cc,
// whose target options it shares.
#ifndef QLORA_BACKEND_CPU_BF16_LANES_INL_H_
#define QLORA_BACKEND_CPU_BF16_LANES_INL_H_

#include <immintrin.h>

#include <algorithm>

#include "backend/cpu/kernels_bf16.h"
#include "backend/cpu/transpose16-inl.h"

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")

namespace qlora::cpu {

inline const std::uint16_t* Row16(const ConstMatrixView& m, Index row) {
  return static_cast<const std::uint16_t*>(m.data) + row * m.stride;
}
inline const float* Row32(const ConstMatrixView& m, Index row) {
  return static_cast<const float*>(m.data) + row * m.stride;
}

// Elements [i, i + 16) of a row as float32; those at or beyond row end `n` are zero.
inline __m512 LoadFloats(const ConstMatrixView& m, Index row, Index i) {
  const __mmask16 mask = FirstLanes(m.cols - i);
  if (m.dtype == DType::kF32) return _mm512_maskz_loadu_ps(mask, Row32(m, row) + i);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, Row16(m, row) + i);
  if (m.dtype == DType::kF16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline __m256i ToBits(__m512 v) { return (__m256i)_mm512_cvtneps_pbh(v); }

// The same as bfloat16.
inline __m256i LoadBits(const ConstMatrixView& m, Index row, Index i) {
  if (m.dtype == DType::kBF16) {
    return _mm256_maskz_loadu_epi16(FirstLanes(m.cols - i), Row16(m, row) + i);
  }
  return ToBits(LoadFloats(m, row, i));
}
inline __m512i LoadBits32(const ConstMatrixView& m, Index row, Index i) {
  const __m512i low = _mm512_castsi256_si512(LoadBits(m, row, i));
  if (i + 16 >= m.cols) return _mm512_inserti64x4(low, _mm256_setzero_si256(), 1);
  return _mm512_inserti64x4(low, LoadBits(m, row, i + 16), 1);
}

// A tile of c, (kRows, kVectors * kVector), or zeros if it is not added to.
template <int kRows, int kVectors>
inline __attribute__((always_inline)) void LoadSums(const Product& p, const float* c,
                                                    __m512 (&sum)[kRows][kVectors]) {
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
inline __attribute__((always_inline)) void StoreSums(const Product& p,
                                                     const __m512 (&sum)[kRows][kVectors],
                                                     float* c) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(c + r * p.c_stride + v * bf16::kVector, sum[r][v]);
    }
  }
}

}  // namespace qlora::cpu
#pragma GCC pop_options

#endif  // QLORA_BACKEND_CPU_BF16_LANES_INL_H_
