// Products of codes with vpdpbusd of AVX-VNNI, in the registers of AVX2: as int8_vnni.cc, 8 lanes a
// vector. 16 registers hold 6 rows x 2 vectors of sums, two vectors of a panel and a quad of a row;
// results stay in memory, which the first-level cache has.
#include <cpuid.h>
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/x86/int8.h"
#include "backend/int8/codes.h"
#include "machine/simd_target.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,avxvnni")

namespace qlora::cpu {
namespace {

using Index = std::int64_t;
constexpr Index kYmm = 8;  // lanes of a vector
constexpr Index kTileLanes = 16;
constexpr int kTileRows = 6;

// sum + four products of unsigned and signed bytes each. GCC 12 copies the sums of the intrinsic.
HWY_INLINE __m256i AddQuads(__m256i sum, __m256i bytes, __m256i codes) {
#ifdef __clang__
  return _mm256_dpbusd_avx_epi32(sum, bytes, codes);
#else
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(bytes), "x"(codes));
  return sum;
#endif
}

HWY_INLINE __m256i Load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// c = fma(sum, scale, [c]) [* factor], for one row.
HWY_INLINE void AddScaled(__m256i sum, const float* scales, bool add, const float* factor,
                          float* c) {
  const __m256 before = add ? _mm256_loadu_ps(c) : _mm256_setzero_ps();
  __m256 value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_loadu_ps(scales), before);
  if (factor != nullptr) value = _mm256_mul_ps(value, _mm256_set1_ps(*factor));
  _mm256_storeu_ps(c, value);
}

// Lanes [lane, lane + kTileLanes) of kRows rows.
template <int kRows>
void Tile(const Int8Product& p, Index row, Index lane) {
  const std::uint8_t* a = p.a + row * p.a_stride;
  const std::int8_t* panel = p.panel + lane * kInt8Step;
  Index a_stride = p.a_stride;
  for (Index k = 0; k < p.k; k += int8::kGroup) {
    const Index group = k / int8::kGroup * p.width + lane;
    __m256i sum[kRows][2];
    for (int v = 0; v < 2; ++v) {
      const __m256i start = Load(p.starts + group + v * kYmm);
      for (int r = 0; r < kRows; ++r) sum[r][v] = start;
    }
    const Index quads = (std::min(int8::kGroup, p.k - k) + kInt8Step - 1) / kInt8Step;
    for (Index i = 0; i < quads; ++i, a += kInt8Step, panel += kInt8Step * p.width) {
      const __m256i first = Load(panel);
      const __m256i second = Load(panel + kYmm * kInt8Step);
      // Otherwise GCC makes a pointer for every row, more than there are registers.
      __asm__("" : "+r"(a_stride));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int quad;
        __builtin_memcpy(&quad, a + r * a_stride, sizeof(quad));
        const __m256i bytes = _mm256_set1_epi32(quad);
        sum[r][0] = AddQuads(sum[r][0], bytes, first);
        sum[r][1] = AddQuads(sum[r][1], bytes, second);
      }
    }
    const bool last = k + int8::kGroup >= p.k && p.factors != nullptr;
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < 2; ++v) {
        AddScaled(sum[r][v], p.scales + group + v * kYmm, p.add || k > 0,
                  last ? p.factors + row + r : nullptr,
                  p.c + (row + r) * p.c_stride + lane + v * kYmm);
      }
    }
  }
}

// All rows in tiles of nearly the same height.
void Multiply(const Int8Product& p) {
  static constexpr auto kTiles = KernelsFor<kTileRows>([]<int kHeight>() { return Tile<kHeight>; });
  for (Index lane = 0; lane < p.width; lane += kTileLanes) {
    Index tiles = (p.rows + kTileRows - 1) / kTileRows;
    for (Index r = 0; tiles > 0; --tiles) {
      const Index height = (p.rows - r + tiles - 1) / tiles;
      kTiles[height - 1](p, r, lane);
      r += height;
    }
  }
}

// __builtin_cpu_supports of GCC 12 does not know the name.
bool HasAvxVnni() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kBit = 1u << 4;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kBit) != 0;
}

}  // namespace

Int8Multiply AvxVnniMultiply() {
  return ActiveSimdTarget() >= SimdTarget::kAvx2 && HasAvxVnni() ? Multiply : nullptr;
}

}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES
