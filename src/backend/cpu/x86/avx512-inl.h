// Shared by all files of this folder: the intrinsics, vectors of 16 words of 32 bits (AVX-512),
// and loads of rows as float32. Included first, because it silences false warnings of GCC.
#ifndef QLORA_BACKEND_CPU_X86_AVX512_INL_H_
#define QLORA_BACKEND_CPU_X86_AVX512_INL_H_

// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for mistakes.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "qlora/tensor.h"

// The instructions of all functions of this folder; HWY_PUSH_ATTRIBUTES takes these and more.
#ifdef __clang__
#define QLORA_AVX512 "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#else
#define QLORA_AVX512 "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
HWY_PUSH_ATTRIBUTES(QLORA_AVX512)

namespace qlora::cpu {

using Index = std::int64_t;

inline __mmask16 FirstLanes(Index count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << std::max<Index>(count, 0)) - 1);
}

inline const std::uint16_t* Row16(const ConstMatrixView& m, Index row) {
  return static_cast<const std::uint16_t*>(m.data) + row * m.stride;
}
inline const float* Row32(const ConstMatrixView& m, Index row) {
  return static_cast<const float*>(m.data) + row * m.stride;
}

// Elements [i, i + 16) of a row as float32; those at or beyond the end of the row are zero.
inline __m512 LoadFloats(const ConstMatrixView& m, Index row, Index i) {
  const __mmask16 mask = FirstLanes(m.cols - i);
  if (m.dtype == DType::kF32) return _mm512_maskz_loadu_ps(mask, Row32(m, row) + i);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, Row16(m, row) + i);
  if (m.dtype == DType::kF16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// In place: element j of v[i] becomes element i of v[j]. First within blocks of 4 x 4 (unpack),
// then of the blocks (shuffle).
HWY_INLINE void Transpose16(__m512i (&v)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i even_low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
    t[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    t[i + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES

#endif  // QLORA_BACKEND_CPU_X86_AVX512_INL_H_
