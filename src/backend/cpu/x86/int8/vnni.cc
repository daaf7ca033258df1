// Products of codes with vpdpbusd: four products of bytes are added to each sum of 32 bits. With
// AVX512_VNNI a vector has 16 lanes, with AVX-VNNI 8.
//
//   quad 0: | lane 0: k0 k1 k2 k3 | lane 1: k0 ... |     one step multiplies a vector of lanes with
//   quad 1: | lane 0: k4 k5 k6 k7 | ...                  a quad of a row that is broadcast
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/x86/int8/vnni.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>
#include <cstring>

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/x86/int8/kernels.h"
#include "backend/int8/codes.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
namespace {

using Index = std::int64_t;
using IntTag = hn::RebindToSigned<FloatTag>;
using Ints = hn::Vec<IntTag>;
// GCC 12 copies sums of the intrinsic, so the instruction is written as such; sums are what it
// takes.
using Sum = decltype(Ints::raw);

// Sums of a tile. With fewer, each instruction would wait for the one before it in its sum. Of 32
// registers, 12 others keep the totals in float32 until the tile ends; of 16, totals stay in
// memory.
constexpr int kTileSums = 12;
constexpr bool kKeepsTotals = HWY_TARGET == HWY_AVX3;

// Steps of a round of the inner loop: what is behind the last code of `k` is read, too.
constexpr Index kSteps = 4;
static_assert(kInt8Depth % (kSteps * kInt8Step) == 0);

// sum + four products of unsigned and signed bytes each.
HWY_INLINE Sum AddQuads(Sum sum, Ints bytes, Ints codes) {
#if HWY_TARGET == HWY_AVX3
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes.raw), "v"(codes.raw));
#else
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(bytes.raw), "x"(codes.raw));
#endif
  return sum;
}

HWY_INLINE Ints QuadOf(const std::uint8_t* row) {
  std::int32_t quad;
  std::memcpy(&quad, row, sizeof(quad));
  return hn::Set(IntTag(), quad);
}

// c(r, lane) = fma(sum(r, lane), scales[lane], c(r, lane) or 0). Without a branch for each vector.
template <bool kAdd, int kRows, int kVectors>
HWY_INLINE void AddScaled(const Sum (&sum)[kRows][kVectors], const float* scales, float* c,
                          Index c_stride) {
  const FloatTag f;
  hn::Vec<FloatTag> scale[kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) scale[v] = hn::LoadU(f, scales + v * kLanes);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, c += c_stride) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + v * kLanes;
      const auto before = kAdd ? hn::LoadU(f, to) : hn::Zero(f);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(f, Ints{sum[r][v]}), scale[v], before), f, to);
    }
  }
}

// The same of totals in registers.
template <int kRows, int kVectors>
HWY_INLINE void AddScaled(const Sum (&sum)[kRows][kVectors], const float* scales,
                          hn::Vec<FloatTag> (&total)[kRows][kVectors]) {
  const FloatTag f;
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const auto scale = hn::LoadU(f, scales + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      total[r][v] = hn::MulAdd(hn::ConvertTo(f, Ints{sum[r][v]}), scale, total[r][v]);
    }
  }
}

// kRows rows, kVectors vectors of lanes from `lane` on.
template <int kRows, int kVectors, bool kQuads>
void Tile(const Int8Product& p, Index row, Index lane) {
  const IntTag d;
  const FloatTag f;
  constexpr Index kRowStep = kQuads ? kInt8Step : kInt8Stride;
  constexpr Index kQuadStep = kQuads ? kInt8Stride : kInt8Step;
  const std::uint8_t* a = p.a + row * kRowStep;
  const std::int8_t* panel = p.panel + lane * kInt8Step;
  const Index width = p.width;
  float* c = p.c + row * p.c_stride + lane;
  hn::Vec<FloatTag> total[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows && kKeepsTotals; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      total[r][v] = p.add ? hn::LoadU(f, c + r * p.c_stride + v * kLanes) : hn::Zero(f);
    }
  }
  for (Index k = 0; k < p.k; k += int8::kGroup) {
    const Index group = k / int8::kGroup * width + lane;
    Sum sum[kRows][kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const auto start = hn::LoadU(d, p.starts + group + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sum[r][v] = start.raw;
    }
    const Index depth = Pieces(std::min(int8::kGroup, p.k - k), kInt8Step);
    for (Index i = 0; i < depth; i += kSteps) {
#pragma GCC unroll 8
      for (Index step = 0; step < kSteps; ++step, a += kQuadStep, panel += kInt8Step * width) {
        Ints lanes[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          const auto* from = reinterpret_cast<const std::int32_t*>(panel);
          lanes[v] = hn::LoadU(d, from + v * kLanes);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Ints quad = QuadOf(a + r * kRowStep);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) sum[r][v] = AddQuads(sum[r][v], quad, lanes[v]);
        }
      }
    }
    // Ends the life of the sums of the loop; otherwise GCC copies each in every step.
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) __asm__("" : "+v"(sum[r][v]));
    }
    const float* scales = p.scales + group;
    if constexpr (kKeepsTotals) {
      AddScaled(sum, scales, total);
    } else if (k == 0 && !p.add) {
      AddScaled<false>(sum, scales, c, p.c_stride);
    } else {
      AddScaled<true>(sum, scales, c, p.c_stride);
    }
  }
  if (!kKeepsTotals && p.factors == nullptr) return;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, c += p.c_stride) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      auto value = kKeepsTotals ? total[r][v] : hn::LoadU(f, c + v * kLanes);
      if (p.factors != nullptr) value = hn::Mul(value, hn::Set(f, p.factors[row + r]));
      hn::StoreU(value, f, c + v * kLanes);
    }
  }
}

// Few lines at a time, so that the product goes on while memory is waited for.
HWY_INLINE void Fetch(const CacheLines& lines) {
  const std::uint8_t* row = lines.data;
  for (Index r = 0; r < lines.rows; ++r, row += lines.stride) {
    for (Index i = 0; i < lines.bytes; i += kCacheLine) __builtin_prefetch(row + i, 0, 2);
  }
}

template <int kRows, int kVectors, bool kQuads>
void MultiplyRows(const Int8Product& p) {
  static constexpr auto kTiles =
      KernelsFor<kRows>([]<int kHeight>() { return Tile<kHeight, kVectors, kQuads>; });
  for (Index lane = 0; lane < p.width; lane += kVectors * kLanes) {
    ForEachTile(p.rows, kRows, [&](Index r, Index height) {
      if (lane == 0) Fetch(p.fetch_weight.Part(r, r + height, p.rows));
      kTiles[height - 1](p, r, lane);
    });
  }
}

template <bool kQuads>
void Multiply(const Int8Product& p) {
#if HWY_TARGET == HWY_AVX3
  if (p.width == kLanes) return MultiplyRows<kTileSums, 1, kQuads>(p);
#endif
  MultiplyRows<kTileSums / 2, 2, kQuads>(p);
}

}  // namespace

void MultiplyVnni(const Int8Product& p) { p.quads ? Multiply<true>(p) : Multiply<false>(p); }

#else
void MultiplyVnni(const Int8Product& /*p*/) {}
#endif
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(MultiplyVnni);

const Int8Kernels& VnniKernels() {
  static constexpr Int8Kernels kKernels = {.offset = kCodeOffset,
                                           .multiply =
                                               [](const Int8Product& p) {
                                                 HWY_DYNAMIC_DISPATCH(MultiplyVnni)
                                                 (p);
                                               },
                                           .quads = true,
                                           .most_dots = kMostVnniDots,
                                           .dots = DotCodes};
  return kKernels;
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
