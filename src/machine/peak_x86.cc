// The loops of x86-64.
#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <iterator>

#include "base/check.h"
#include "machine/peak.h"
#include "machine/processor.h"
#include "machine/tile_config.h"

namespace qlora {
namespace {

constexpr int kSseChains = 12;
constexpr int kPairChains = 12;  // and as many products
constexpr int kVexChains = 14;
constexpr int kZmmChains = 24;
constexpr int kTiles = 6;
constexpr int kRounds = 1 << 18;
constexpr int kTileRounds = 1 << 14;

// Instructions are written as such: a compiler may copy the sums of an intrinsic, which costs more
// than the instruction (GCC 12 with vpdpbusd), and puts an array that it does not unroll into
// memory. Operands are ones: nothing is denormal, and sums stay finite.

void MultiplyAddXmm() {
  __m128 sums[kSseChains];
  const __m128 x = _mm_set1_ps(1);
#pragma GCC unroll 12
  for (__m128& sum : sums) sum = _mm_setzero_ps();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m128& sum : sums) {
      __m128 product = x;
      asm volatile("mulps %2, %1\n\taddps %1, %0" : "+x"(sum), "+&x"(product) : "x"(x));
    }
  }
}

__attribute__((target("avx2,fma"))) void MultiplyAddYmm() {
  __m256 sums[kVexChains];
  const __m256 x = _mm256_set1_ps(1);
#pragma GCC unroll 14
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 14
    for (__m256& sum : sums) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sum) : "x"(x));
  }
}

__attribute__((target("avx512f"))) void MultiplyAddZmm() {
  __m512 sums[kZmmChains];
  const __m512 x = _mm512_set1_ps(1);
#pragma GCC unroll 24
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 24
    for (__m512& sum : sums) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(x));
  }
}

__attribute__((target("avx512f"))) void Bfloat16DotsZmm() {
  __m512 sums[kZmmChains];
  const __m512i x = _mm512_set1_epi32(0x3f803f80);  // pairs of 1
#pragma GCC unroll 24
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 24
    for (__m512& sum : sums) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(x));
  }
}

__attribute__((target("avx2"))) void Int8DotsYmm() {
  __m256i sums[kVexChains];
  const __m256i x = _mm256_set1_epi8(1);
#pragma GCC unroll 14
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 14
    for (__m256i& sum : sums) asm volatile("%{vex%} vpdpbusd %1, %1, %0" : "+x"(sum) : "x"(x));
  }
}

__attribute__((target("avx512f"))) void Int8DotsZmm() {
  __m512i sums[kZmmChains];
  const __m512i x = _mm512_set1_epi32(0x01010101);
#pragma GCC unroll 24
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 24
    for (__m512i& sum : sums) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(x));
  }
}

__attribute__((target("avx2"))) void Int16PairsYmm() {
  __m256i sums[kPairChains];
  const __m256i x = _mm256_set1_epi16(1);
#pragma GCC unroll 12
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m256i& sum : sums) {
      __m256i product;
      asm volatile("vpmaddwd %2, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(x));
    }
  }
}

__attribute__((target("avx512f,avx512bw"))) void Int16PairsZmm() {
  __m512i sums[kPairChains];
  const __m512i x = _mm512_set1_epi32(0x00010001);
#pragma GCC unroll 12
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m512i& sum : sums) {
      __m512i product;
      asm volatile("vpmaddwd %2, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(x));
    }
  }
}

// Six sums, and two operands of ones, which must be two tiles.
void BeginTiles(std::uint32_t ones) {
  const TileConfig config;
  std::array<std::uint32_t, 256> tile;
  tile.fill(ones);
  asm volatile("ldtilecfg %0" : : "m"(config));
  asm volatile(
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\t"
      "tilezero %%tmm3\n\ttilezero %%tmm4\n\ttilezero %%tmm5\n\t"
      "tileloadd (%0,%1,1), %%tmm6\n\ttileloadd (%0,%1,1), %%tmm7"
      :
      : "r"(tile.data()), "r"(std::int64_t{64})
      : "memory");
}

void EndTiles() { asm volatile("tilerelease"); }

void Bfloat16Tiles() {
  BeginTiles(0x3f803f80);
  for (int i = 0; i < kTileRounds; ++i) {
    asm volatile(
        "tdpbf16ps %tmm7, %tmm6, %tmm0\n\ttdpbf16ps %tmm7, %tmm6, %tmm1\n\t"
        "tdpbf16ps %tmm7, %tmm6, %tmm2\n\ttdpbf16ps %tmm7, %tmm6, %tmm3\n\t"
        "tdpbf16ps %tmm7, %tmm6, %tmm4\n\ttdpbf16ps %tmm7, %tmm6, %tmm5");
  }
  EndTiles();
}

void Int8Tiles() {
  BeginTiles(0x01010101);
  for (int i = 0; i < kTileRounds; ++i) {
    asm volatile(
        "tdpbusd %tmm7, %tmm6, %tmm0\n\ttdpbusd %tmm7, %tmm6, %tmm1\n\t"
        "tdpbusd %tmm7, %tmm6, %tmm2\n\ttdpbusd %tmm7, %tmm6, %tmm3\n\t"
        "tdpbusd %tmm7, %tmm6, %tmm4\n\ttdpbusd %tmm7, %tmm6, %tmm5");
  }
  EndTiles();
}

bool HasYmm() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }
bool HasZmm() { return __builtin_cpu_supports("avx512f") != 0; }

constexpr std::int64_t InstructionsOf(int chains) { return std::int64_t{chains} * kRounds; }
constexpr std::int64_t kTileInstructions = std::int64_t{kTiles} * kTileRounds;

// 16 x 16 sums of 32 or 64 products.
constexpr double kTileBfloat16 = 2.0 * 16 * 16 * 32;
constexpr double kTileInt8 = 2.0 * 16 * 16 * 64;

enum Place {
  kXmm,
  kYmm,
  kZmm,
  kBfloat16Zmm,
  kInt16Ymm,
  kInt16Zmm,
  kInt8Ymm,
  kInt8Zmm,
  kBfloat16Tmm,
  kInt8Tmm
};
constexpr PeakLoop kLoops[] = {
    {"mulps + addps xmm", "f32", 8, InstructionsOf(kSseChains), [] { return true; },
     MultiplyAddXmm},
    {"vfmadd231ps ymm", "f32", 16, InstructionsOf(kVexChains), HasYmm, MultiplyAddYmm},
    {"vfmadd231ps zmm", "f32", 32, InstructionsOf(kZmmChains), HasZmm, MultiplyAddZmm},
    {"vdpbf16ps zmm", "bf16", 64, InstructionsOf(kZmmChains),
     [] { return HasZmm() && HasBfloat16Dots(); }, Bfloat16DotsZmm},
    {"vpmaddwd + vpaddd ymm", "int8", 32, InstructionsOf(kPairChains), HasYmm, Int16PairsYmm},
    {"vpmaddwd + vpaddd zmm", "int8", 64, InstructionsOf(kPairChains),
     [] { return HasZmm() && __builtin_cpu_supports("avx512bw") != 0; }, Int16PairsZmm},
    {"vpdpbusd ymm, VEX", "int8", 64, InstructionsOf(kVexChains), HasYmmVnni, Int8DotsYmm},
    {"vpdpbusd zmm", "int8", 128, InstructionsOf(kZmmChains), HasZmmVnni, Int8DotsZmm},
    {"tdpbf16ps", "bf16", kTileBfloat16, kTileInstructions, HasBfloat16Tiles, Bfloat16Tiles},
    {"tdpbusd", "int8", kTileInt8, kTileInstructions, HasInt8Tiles, Int8Tiles},
};
static_assert(std::size(kLoops) == kInt8Tmm + 1);

}  // namespace

std::span<const PeakLoop> PeakLoops() { return kLoops; }

const PeakLoop& PeakLoopOf(SimdTarget target, DType compute) {
  if (compute == DType::kI8) {
    const Int8Dots dots = ActiveInt8Dots();
    if (dots == Int8Dots::kAmx) return kLoops[kInt8Tmm];
    const bool narrow = target == SimdTarget::kAvx2;
    if (dots == Int8Dots::kVnni) return kLoops[narrow ? kInt8Ymm : kInt8Zmm];
    if (dots == Int8Dots::kMadd) return kLoops[narrow ? kInt16Ymm : kInt16Zmm];
  }
  switch (target) {
    case SimdTarget::kAvx512Bf16:
      return kLoops[compute == DType::kBF16 ? kBfloat16Zmm : kZmm];
    case SimdTarget::kAmx:
      return kLoops[compute == DType::kBF16 ? kBfloat16Tmm : kZmm];
    case SimdTarget::kAvx512:
      return kLoops[kZmm];
    case SimdTarget::kAvx2:
      return kLoops[kYmm];
    default:
      break;
  }
  return kLoops[kXmm];
}

}  // namespace qlora
#endif
