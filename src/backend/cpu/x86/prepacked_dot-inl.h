// Dot products of few rows of x with prepacked 4-bit weights (AVX512_VBMI), whatever the type of
// their values. The lanes are 16 rows of the weight: values are looked up in one table for all of
// them, x is broadcast, and the sum over a chunk is scaled, not its values.
//
//   panel, 8 columns:   | word of row 0 | word of row 1 | ... | word of row 15 |    one register
//   nibble n of each:   | w(0, n)       | w(1, n)       | ... | w(15, n)       |    after the
//   look-up row m of x:           x(m, n) broadcast                                         += into
//   part[m]
//
// Included by .cc files among their own target options, because inlined functions must share them;
// they first include the headers that this file needs.
#ifndef QLORA_BACKEND_CPU_X86_PREPACKED_DOT_INL_H_
#define QLORA_BACKEND_CPU_X86_PREPACKED_DOT_INL_H_

#include <algorithm>

#include "backend/cpu/gemm/prepacked.h"
#include "backend/cpu/x86/avx512-inl.h"

namespace qlora::cpu {
namespace {

// The scales of one panel, a group of chunks after the other from `chunk` on.
class PanelScales {
 public:
  HWY_INLINE PanelScales(const PrepackedRows& in, Index row, Index chunk) : in_(in) {
    if (in.scale_map == nullptr) return;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto chunks = static_cast<int>(in.chunks);
    block_ = in.first + row * in.chunks + chunk;
    place_ = _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(chunks)),
                              _mm512_set1_epi32(static_cast<int>(block_ % kNested)));
    nested_ = NestedScales();
  }

  // Bytes of the scales of a group.
  Index bytes() const { return kPrepackedGroup * kPrepackedRows * (in_.scale_map ? 1 : 4); }

  // Scales (n chunks, 16 rows) of the group at `group`; room: for a whole group.
  HWY_INLINE const float* Group(const std::byte* group, Index n, float* room) {
    if (in_.scale_map == nullptr) return reinterpret_cast<const float*>(group);
    const __m512i codes = _mm512_load_si512(group);
    const __m512i b0 = MapByte(codes, 0);
    const __m512i b1 = MapByte(codes, 1);
    const __m512i b2 = MapByte(codes, 2);
    const __m512i b3 = MapByte(codes, 3);
    const __m512i low01 = _mm512_unpacklo_epi8(b0, b1);
    const __m512i low23 = _mm512_unpacklo_epi8(b2, b3);
    const __m512i high01 = _mm512_unpackhi_epi8(b0, b1);
    const __m512i high23 = _mm512_unpackhi_epi8(b2, b3);
    Scale(_mm512_unpacklo_epi16(low01, low23), room);
    if (n > 1) Scale(_mm512_unpackhi_epi16(low01, low23), room + 16);
    if (n > 2) Scale(_mm512_unpacklo_epi16(high01, high23), room + 32);
    if (n > 3) Scale(_mm512_unpackhi_epi16(high01, high23), room + 48);
    return room;
  }

 private:
  static constexpr Index kNested = ChunkScales::kNestedBlock;

  // Byte b of the values of the map.
  HWY_INLINE __m512i MapByte(__m512i codes, int b) const {
    const std::byte* map = in_.scale_map + 256 * b;
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(map), codes, _mm512_load_si512(map + 64));
    const __m512i high =
        _mm512_permutex2var_epi8(_mm512_load_si512(map + 128), codes, _mm512_load_si512(map + 192));
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
  }

  // map * nested scale + offset of the next chunk of every row, rounded twice as everywhere.
  HWY_INLINE void Scale(__m512i map, float* out) {
    const __m512i within = _mm512_set1_epi32(kNested - 1);
    if (_mm512_testn_epi32_mask(place_, within) != 0) nested_ = NestedScales();
    _mm512_store_ps(out, _mm512_add_ps(_mm512_mul_ps(_mm512_castsi512_ps(map), nested_),
                                       _mm512_set1_ps(in_.offset)));
    place_ = _mm512_add_epi32(place_, _mm512_set1_epi32(1));
  }

  __m512 NestedScales() const {
    const __m512i index = _mm512_srli_epi32(place_, 8);
    static_assert(kNested == 1 << 8);
    return _mm512_i32gather_ps(index, in_.nested_scales + block_ / kNested, 4);
  }

  const PrepackedRows& in_;
  Index block_ = 0;  // of the first chunk in the first row
  __m512i place_;    // of every row's next chunk, from the nested block of block_ on
  __m512 nested_;
};

// The address to prefetch when `at` is read, which may be part of another object.
HWY_INLINE const char* Ahead(const PrepackedRows& in, const std::byte* at) {
  return reinterpret_cast<const char*>(reinterpret_cast<std::intptr_t>(at) + in.ahead);
}

// Parts of a sum over a chunk: as many as it takes to hide how long an addition takes.
constexpr int PanelSums(int count) { return count <= 2 ? 4 : count < 8 ? 2 : 1; }
constexpr int kRowPanelSums = 2;                  // row by row, for any number of rows
constexpr Index kChunkOfPanel = kChunk / 8 * 64;  // bytes of a chunk of 16 rows

// Adds kChunks chunks of a panel to sum: `at` its values, `scale` its scales. Sums over a chunk run
// in kSums parts. Values says how 8 columns of 16 rows become products with 32 bits of x at a time:
//   kSteps, kMost    such products for 8 columns; most rows of x
//   Load(at, step)   the tables in which an even step and the odd one after it look values up
//   Lookup, MulAdd   the values of a step, and their products with one row of x
template <int kChunks, int kSums, class Values, int kCount>
HWY_INLINE void AddChunks(const PrepackedRows& in, const std::byte* at, const float* x,
                          const float* scale, const Values& values, __m512 (&sum)[kCount]) {
  constexpr int kSteps = Values::kSteps;
  __m512 part[kChunks][kCount][kSums];
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
#pragma GCC unroll 24
    for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
      for (int s = 0; s < kSums; ++s) part[c][m][s] = _mm512_setzero_ps();
    }
  }
#pragma GCC unroll 1
  for (int i = 0; i < kChunk / 8; ++i, at += 64, x += kSteps * kCount) {
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; ++c) {
      const std::byte* of_chunk = at + c * kChunkOfPanel;
      const float* x_of_chunk = x + c * (kChunk / 8) * kSteps * kCount;
      _mm_prefetch(Ahead(in, of_chunk), _MM_HINT_T1);
      __m512i words;
#pragma GCC unroll 8
      for (int step = 0; step < kSteps; ++step) {
        if (step % 2 == 0) words = Values::Load(of_chunk, step);
        const auto value = values.Lookup(words, step);
#pragma GCC unroll 24
        for (int m = 0; m < kCount; ++m) {
          __m512& to = part[c][m][step % kSums];
          to = Values::MulAdd(to, value, x_of_chunk + kSteps * m + step);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c, scale += kPrepackedRows) {
#pragma GCC unroll 24
    for (int m = 0; m < kCount; ++m) {
      __m512 total = part[c][m][0];
#pragma GCC unroll 4
      for (int s = 1; s < kSums; ++s) total = _mm512_add_ps(total, part[c][m][s]);
      sum[m] = _mm512_fmadd_ps(total, _mm512_load_ps(scale), sum[m]);
    }
  }
}

// One panel, kChunks chunks at a time.
template <class Values, int kCount, int kSums, int kChunks>
HWY_INLINE void DotPanel(const PrepackedRows& in, const DotProduct& p, Index row,
                         const Values& values) {
  const std::byte* at = in.panels + row / kPrepackedRows * in.panel_bytes;
  const auto* x = static_cast<const float*>(p.x);
  PanelScales scales(in, row, 0);
  alignas(64) float room[kPrepackedGroup * kPrepackedRows];
  __m512 sum[kCount];
#pragma GCC unroll 24
  for (int m = 0; m < kCount; ++m) sum[m] = _mm512_setzero_ps();
  for (Index chunk = 0; chunk < in.chunks; chunk += kPrepackedGroup) {
    const Index n = std::min(kPrepackedGroup, in.chunks - chunk);
    const float* scale = scales.Group(at, n, room);
    for (Index i = 0; i < scales.bytes(); i += 64) {
      _mm_prefetch(Ahead(in, at + i), _MM_HINT_T1);
    }
    at += scales.bytes();
    constexpr Index kXOfChunk = kChunk / 8 * Values::kSteps * kCount;
    Index c = 0;
    for (; c + kChunks <= n; c += kChunks) {
      AddChunks<kChunks, kSums>(in, at + c * kChunkOfPanel, x + c * kXOfChunk,
                                scale + c * kPrepackedRows, values, sum);
    }
    for (; c < n; ++c) {
      AddChunks<1, kSums>(in, at + c * kChunkOfPanel, x + c * kXOfChunk, scale + c * kPrepackedRows,
                          values, sum);
    }
    at += n * kChunkOfPanel;
    x += n * kXOfChunk;
  }
#pragma GCC unroll 24
  for (int m = 0; m < kCount; ++m) _mm512_storeu_ps(p.out + m * p.out_stride + row, sum[m]);
}

template <class Values, int kCount, int kSums, int kChunks>
void DotPanels(const PrepackedRows& in, const DotProduct& p) {
  const Values values(in.code);
  for (Index row = 0; row < in.rows; row += kPrepackedRows) {
    DotPanel<Values, kCount, kSums, kChunks>(in, p, row, values);
  }
}

template <class Values>
void DotPanelsOf(const PrepackedRows& in, const DotProduct& p) {
  QLORA_DCHECK(p.count > 0 && p.count <= Values::kMost);
  static constexpr auto kFastest = KernelsFor<Values::kMost>(
      []<int kCount>() { return DotPanels<Values, kCount, PanelSums(kCount), 1>; });
  // For few rows, the sums of two chunks at a time are as many as PanelSums.
  static constexpr auto kRowByRow = KernelsFor<kRowByRowBatch>(
      []<int kCount>() { return DotPanels<Values, kCount, kRowPanelSums, (kCount <= 2 ? 2 : 1)>; });
  QLORA_DCHECK(!p.row_by_row || p.count <= kRowByRowBatch);
  static_assert(Values::kMost >= kRowByRowBatch);
  (p.row_by_row ? kRowByRow[p.count - 1] : kFastest[p.count - 1])(in, p);
}

}  // namespace
}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_X86_PREPACKED_DOT_INL_H_
