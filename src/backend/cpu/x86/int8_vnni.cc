// Products of codes with vpdpbusd of AVX512_VNNI: four products of bytes are added to each of 16
// sums of 32 bits.
//
//   quad 0: | lane 0: k0 k1 k2 k3 | lane 1: k0 ... |     one step multiplies 16 lanes with a quad
//   of quad 1: | lane 0: k4 k5 k6 k7 | ...                  a row that is broadcast
#include <algorithm>

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/int8.h"
#include "backend/int8/codes.h"
#include "machine/simd_target.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512vnni")

namespace qlora::cpu {
namespace {

// sum + four products of unsigned and signed bytes each. GCC 12 copies the sums of the intrinsic.
HWY_INLINE __m512i AddQuads(__m512i sum, __m512i bytes, __m512i codes) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(codes));
  return sum;
}

HWY_INLINE __m512i QuadOf(const std::uint8_t* row) {
  int quad;
  __builtin_memcpy(&quad, row, sizeof(quad));
  return _mm512_set1_epi32(quad);
}

template <int kRows, int kVectors>
HWY_INLINE void Tile(const Int8Product& p, Index row) {
  constexpr Index kWidth = kVectors * kInt8Vector;
  const std::uint8_t* a = p.a + row * p.a_stride;
  Index a_stride = p.a_stride;
  const std::int8_t* panel = p.panel;
  float* c = p.c + row * p.c_stride;
  __m512 total[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      total[r][v] =
          p.add ? _mm512_loadu_ps(c + r * p.c_stride + v * kInt8Vector) : _mm512_setzero_ps();
    }
  }
  Index group = 0;
  for (Index k = 0; k < p.k; k += int8::kGroup, ++group) {
    __m512i sum[kRows][kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const __m512i start = _mm512_loadu_si512(p.starts + group * kWidth + v * kInt8Vector);
      for (int r = 0; r < kRows; ++r) sum[r][v] = start;
    }
    const Index quads = (std::min(int8::kGroup, p.k - k) + kInt8Step - 1) / kInt8Step;
    for (Index i = 0; i < quads; ++i, a += kInt8Step, panel += kInt8Step * kWidth) {
      __m512i lanes[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        lanes[v] = _mm512_loadu_si512(panel + v * kInt8Vector * kInt8Step);
      }
      // Otherwise GCC makes a pointer for every row, more than there are registers.
      __asm__("" : "+r"(a_stride));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512i quad = QuadOf(a + r * a_stride);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[r][v] = AddQuads(sum[r][v], quad, lanes[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m512 scale = _mm512_loadu_ps(p.scales + group * kWidth + v * kInt8Vector);
      for (int r = 0; r < kRows; ++r) {
        total[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][v]), scale, total[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      __m512 value = total[r][v];
      if (p.factors != nullptr) value = _mm512_mul_ps(value, _mm512_set1_ps(p.factors[row + r]));
      _mm512_storeu_ps(c + r * p.c_stride + v * kInt8Vector, value);
    }
  }
}

// All rows in tiles of nearly the same height, at most kRows.
template <int kRows, int kVectors>
void MultiplyRows(const Int8Product& p) {
  static constexpr auto kTiles =
      KernelsFor<kRows>([]<int kHeight>() { return Tile<kHeight, kVectors>; });
  Index tiles = (p.rows + kRows - 1) / kRows;
  for (Index r = 0; tiles > 0; --tiles) {
    const Index height = (p.rows - r + tiles - 1) / tiles;
    kTiles[height - 1](p, r);
    r += height;
  }
}

void Multiply(const Int8Product& p) {
  if (p.width == kInt8Vector) return MultiplyRows<12, 1>(p);
  MultiplyRows<6, 2>(p);
}

}  // namespace

Int8Multiply VnniMultiply() {
  const bool has =
      ActiveSimdTarget() >= SimdTarget::kAvx512 && __builtin_cpu_supports("avx512vnni") != 0;
  return has ? Multiply : nullptr;
}

}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES
