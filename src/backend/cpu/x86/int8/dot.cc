// Dot products of codes. Each group has a vector of parts of its sum; those of several groups are
// transposed as they are added:
//
//   group 0    p0 p1 p2 ...     |  +  ->   | sum of group 0 | sum of group 1 | ...
//   group 1    p0 p1 p2 ...     v
//   ...
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/x86/int8/dot.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/cpu/int8/chunk_coder-inl.h"
#include "backend/cpu/int8/coded_chunks.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/x86/int8/kernels.h"
#include "backend/int8/codes.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
namespace {

using Index = std::int64_t;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::Repartition<std::int16_t, IntTag>;
using ByteTag = hn::Repartition<std::int8_t, IntTag>;
using Ints = hn::Vec<IntTag>;

// Lane r: the sum of the lanes of v[r].
HWY_INLINE Ints SumOfEach(const Ints (&v)[kLanes]) {
  const IntTag d;
  const hn::Repartition<std::int64_t, IntTag> d64;
  Ints two[kLanes / 2];  // in each block of 4 lanes: of vectors 0, 1, 0, 1
#pragma GCC unroll 8
  for (Index i = 0; i < kLanes / 2; ++i) {
    const auto [a, b] = std::pair(v[2 * i], v[2 * i + 1]);
    two[i] = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  }
  Ints four[kLanes / 4];  // of vectors 0, 1, 2, 3
#pragma GCC unroll 4
  for (Index i = 0; i < kLanes / 4; ++i) {
    const auto a = hn::BitCast(d64, two[2 * i]);
    const auto b = hn::BitCast(d64, two[2 * i + 1]);
    four[i] = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, a, b)),
                      hn::BitCast(d, hn::InterleaveUpper(d64, a, b)));
  }
#if HWY_TARGET == HWY_AVX2
  return hn::Add(hn::ConcatLowerLower(d, four[1], four[0]),
                 hn::ConcatUpperUpper(d, four[1], four[0]));
#else
  const auto add_blocks = [](Ints a, Ints b) HWY_ATTR {
    return hn::Add(Ints{_mm512_shuffle_i32x4(a.raw, b.raw, 0x88)},
                   Ints{_mm512_shuffle_i32x4(a.raw, b.raw, 0xdd)});
  };
  return add_blocks(add_blocks(four[0], four[1]), add_blocks(four[2], four[3]));
#endif
}

// Quads of unsigned codes times those of the lane. kSigned: those of the rows have no offset yet.
template <bool kSigned>
struct Quads {
  static constexpr Index kCodes = 4 * kLanes;  // of a vector
  static constexpr bool kHasOffset = true;     // in any case

  HWY_INLINE static Ints Add(Ints sum, const std::uint8_t* row, const std::int8_t* lane_codes) {
    const auto lane = hn::BitCast(IntTag(), hn::LoadU(ByteTag(), lane_codes));
    auto codes = hn::BitCast(IntTag(), hn::LoadU(hn::Repartition<std::uint8_t, IntTag>(), row));
    if (kSigned) codes = hn::Xor(codes, hn::Set(IntTag(), static_cast<std::int32_t>(0x80808080)));
#if HWY_TARGET == HWY_AVX3
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(codes.raw), "v"(lane.raw));
#else
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(codes.raw), "x"(lane.raw));
#endif
    return sum;
  }
};

// Magnitudes of the codes of the rows times those of the lane, which take over the signs: the sum
// of two is at most 2 * 127 * 127, which a word holds.
struct Magnitudes {
  static constexpr Index kCodes = 4 * kLanes;
  static constexpr bool kHasOffset = false;

  HWY_INLINE static Ints Add(Ints sum, const std::uint8_t* row, const std::int8_t* lane_codes) {
    const ByteTag d8;
    const auto codes = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(row));
    const auto lane = hn::LoadU(d8, lane_codes);
    const auto ones = hn::Set(WordTag(), 1);
#if HWY_TARGET == HWY_AVX3
    const __m512i signs = hn::IfNegativeThenElse(codes, hn::Neg(lane), lane).raw;
    const __m512i words = _mm512_maddubs_epi16(hn::Abs(codes).raw, signs);
    return hn::Add(sum, Ints{_mm512_madd_epi16(words, ones.raw)});
#else
    const __m256i signs = _mm256_sign_epi8(lane.raw, codes.raw);
    const __m256i words = _mm256_maddubs_epi16(hn::Abs(codes).raw, signs);
    return hn::Add(sum, Ints{_mm256_madd_epi16(words, ones.raw)});
#endif
  }
};

// Sums of so many codes, in parts.
template <class Dots, Index kCodes>
HWY_INLINE Ints DotGroup(const std::uint8_t* a, const std::int8_t* lane) {
  Ints sum = hn::Zero(IntTag());
#pragma GCC unroll 8
  for (Index i = 0; i < kCodes; i += Dots::kCodes) sum = Dots::Add(sum, a + i, lane + i);
  return sum;
}

// The parts of the sums of kLanes groups of a row, for each lane of a product.
using Parts = std::int32_t[kMostDots][kLanes][kLanes];
// The sums of all groups.
using Sums = float[kDotRows][kMostDots][kDotDepth / int8::kGroup];

template <class Dots, Index kCodes>
HWY_INLINE void DotLanes(const CodeDots& p, const std::uint8_t* a, Index k, Index group,
                         Parts& parts) {
  const std::int8_t* lane = p.panels + k;
  // Most often the only one.
  hn::Store(DotGroup<Dots, kCodes>(a, lane), IntTag(), parts[0][group]);
#pragma GCC unroll 1
  for (Index m = 1; m < p.lanes; ++m) {
    lane += p.k_stride;
    hn::Store(DotGroup<Dots, kCodes>(a, lane), IntTag(), parts[m][group]);
  }
}

// Groups [first, first + count) of codes that are there.
template <class Dots>
void DotCodesOf(const CodeDots& p, Index first, Index count, Parts& parts) {
  for (Index g = 0; g < count; ++g) {
    const Index k = (first + g) * int8::kGroup;
    if (p.k - k >= int8::kGroup) {
      DotLanes<Dots, int8::kGroup>(p, p.a + k, k, g, parts);
    } else {
      DotLanes<Dots, kInt8Depth>(p, p.a + k, k, g, parts);
    }
  }
}

// The same of codes that are made of the chunks of a row.
template <class Dots, std::uint8_t kOffset, bool kClamps>
void DotChunksOf(const CodeDots& p, Index row, Index first, Index count, Parts& parts) {
  constexpr Index kAhead = 4096;  // bytes
  const PackedChunks& chunks = *p.chunks;
  const Coder<kClamps> code(chunks.code, kOffset);
  const std::uint8_t* packed = chunks.packed + row * chunks.row_bytes + first * int8::kGroup / 2;
  const float* factors = chunks.factors + row * chunks.factor_stride + first * 2;
  HWY_ALIGN std::uint8_t codes[int8::kGroup];
  const Index whole = std::min(count, p.k / int8::kGroup - first);
#pragma GCC unroll 1
  for (Index g = 0; g < whole; ++g, packed += int8::kGroup / 2, factors += 2) {
    hwy::Prefetch(packed + kAhead);
    code(packed, factors, 2, codes);
    DotLanes<Dots, int8::kGroup>(p, codes, (first + g) * int8::kGroup, g, parts);
  }
  if (whole == count) return;
  code(packed, factors, 1, codes);
  DotLanes<Dots, kInt8Depth>(p, codes, (first + whole) * int8::kGroup, whole, parts);
}

// Parts beyond `count` are of other groups; sums has room for kLanes.
template <class Dots>
HWY_INLINE void SumParts(const CodeDots& p, Index lane, Index first, Index count,
                         const Parts& parts, float* sums) {
  const IntTag d;
  Ints v[kLanes];
#pragma GCC unroll 16
  for (Index g = 0; g < kLanes; ++g) v[g] = hn::Load(d, parts[lane][g]);
  auto all = SumOfEach(v);
  if (Dots::kHasOffset) {
    const std::int32_t* starts = p.starts + lane * p.group_stride + first;
    all = hn::Add(all, hn::MaskedLoad(hn::FirstN(d, count), d, starts));
  }
  hn::StoreU(hn::ConvertTo(FloatTag(), all), FloatTag(), sums);
}

// c = fma(sum, scale, [c]), group after group, of several rows at a time: each waits for the one
// before.
HWY_INLINE void AddScaled(const CodeDots& p, Index groups, const Sums& sums) {
  for (Index m = 0; m < p.lanes; ++m) {
    float y[kDotRows] = {};
    const float* of_row[kDotRows];  // the last one for rows that are not there
    for (Index r = 0; r < kDotRows; ++r) of_row[r] = sums[std::min(r, p.rows - 1)][m];
    for (Index r = 0; r < p.rows && p.add; ++r) y[r] = p.c[r * p.c_stride + m];
    const float* scales = p.scales + m * p.group_stride;
    for (Index g = 0; g < groups; ++g) {
#pragma GCC unroll 4
      for (Index r = 0; r < kDotRows; ++r) y[r] = std::fma(of_row[r][g], scales[g], y[r]);
    }
    for (Index r = 0; r < p.rows; ++r) p.c[r * p.c_stride + m] = y[r];
  }
}

// kOffset: of codes of the rows.
template <class Dots, std::uint8_t kOffset>
void DotRows(const CodeDots& p) {
  const Index groups = (p.k + int8::kGroup - 1) / int8::kGroup;
  HWY_ALIGN Parts parts;
  HWY_ALIGN Sums sums;
  for (Index r = 0; r < p.rows; ++r) {
    for (Index first = 0; first < groups; first += kLanes) {
      const Index count = std::min(kLanes, groups - first);
      if (p.chunks == nullptr) {
        DotCodesOf<Dots>(p, first, count, parts);
      } else if (p.chunks->clamps) {
        DotChunksOf<Dots, kOffset, true>(p, r, first, count, parts);
      } else {
        DotChunksOf<Dots, kOffset, false>(p, r, first, count, parts);
      }
      for (Index m = 0; m < p.lanes; ++m) {
        SumParts<Dots>(p, m, first, count, parts, sums[r][m] + first);
      }
    }
  }
  AddScaled(p, groups, sums);
}

}  // namespace

void DotVnni(const CodeDots& p) { DotRows<Quads<false>, kCodeOffset>(p); }
void DotSignedVnni(const CodeDots& p) { DotRows<Quads<true>, 0>(p); }
void DotMadd(const CodeDots& p) { DotRows<Magnitudes, 0>(p); }

#else
void DotVnni(const CodeDots& /*p*/) {}
void DotSignedVnni(const CodeDots& /*p*/) {}
void DotMadd(const CodeDots& /*p*/) {}
#endif
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(DotVnni);
HWY_EXPORT(DotSignedVnni);
HWY_EXPORT(DotMadd);

void DotCodes(const CodeDots& p) { HWY_DYNAMIC_DISPATCH(DotVnni)(p); }
void DotSignedCodes(const CodeDots& p) { HWY_DYNAMIC_DISPATCH(DotSignedVnni)(p); }
void DotCodesAsWords(const CodeDots& p) { HWY_DYNAMIC_DISPATCH(DotMadd)(p); }

}  // namespace qlora::cpu
#endif  // HWY_ONCE
