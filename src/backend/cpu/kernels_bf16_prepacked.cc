// Dot products of few rows of x with prepacked 4-bit weights, in pairs of bfloat16 (AVX512_BF16 and
// AVX512_VBMI). The lanes are 16 rows of the weight: values are looked up in one table for all of
// them, x is broadcast, and the sum over a chunk is scaled, not its values. So values are rounded
// to bfloat16 before they are scaled instead of afterwards: the same relative error.
#include "backend/cpu/kernels_bf16_prepacked.h"

// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/bf16_lanes-inl.h"

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,prefer-vector-width=512")

namespace qlora::cpu::bf16 {
namespace {

// The scales of one panel, a group of chunks after the other from `chunk` on.
class PanelScales {
 public:
  inline __attribute__((always_inline)) PanelScales(const PrepackedRows& in, Index row, Index chunk)
      : in_(in) {
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
  inline __attribute__((always_inline)) const float* Group(const std::byte* group, Index n,
                                                           float* room) {
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
  inline __attribute__((always_inline)) __m512i MapByte(__m512i codes, int b) const {
    const std::byte* map = in_.scale_map + 256 * b;
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(map), codes, _mm512_load_si512(map + 64));
    const __m512i high =
        _mm512_permutex2var_epi8(_mm512_load_si512(map + 128), codes, _mm512_load_si512(map + 192));
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
  }

  // map * nested scale + offset of the next chunk of every row, rounded twice as everywhere.
  inline __attribute__((always_inline)) void Scale(__m512i map, float* out) {
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

// One panel. Sums over a chunk run in kSums parts, as many as it takes to hide how long an addition
// takes.
template <int kCount>
inline __attribute__((always_inline)) void DotPanel(const PrepackedRows& in, const DotProduct& p,
                                                    Index row, __m512i table) {
  constexpr int kSums = kCount <= 2 ? 4 : kCount < 8 ? 2 : 1;
  constexpr Index kAhead = 8192;  // bytes that are fetched early
  const std::byte* at = in.panels + row / kPrepackedRows * in.panel_bytes;
  const auto* x = static_cast<const std::uint16_t*>(p.x);
  PanelScales scales(in, row, 0);
  alignas(64) float room[kPrepackedGroup * kPrepackedRows];
  __m512 sum[kCount];
#pragma GCC unroll 16
  for (int m = 0; m < kCount; ++m) sum[m] = _mm512_setzero_ps();
  for (Index chunk = 0; chunk < in.chunks; chunk += kPrepackedGroup) {
    const Index n = std::min(kPrepackedGroup, in.chunks - chunk);
    const float* scale = scales.Group(at, n, room);
    for (Index i = 0; i < scales.bytes(); i += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(at + i + kAhead), _MM_HINT_T1);
    }
    at += scales.bytes();
    for (Index c = 0; c < n; ++c, scale += kPrepackedRows) {
      __m512 part[kCount][kSums];
#pragma GCC unroll 16
      for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
        for (int s = 0; s < kSums; ++s) part[m][s] = _mm512_setzero_ps();
      }
#pragma GCC unroll 1
      for (int i = 0; i < kChunk / 8; ++i, at += 64, x += 8 * kCount) {
        const __m512i words = _mm512_load_si512(at);
        _mm_prefetch(reinterpret_cast<const char*>(at + kAhead), _MM_HINT_T1);
#pragma GCC unroll 4
        for (int nibble = 0; nibble < 4; ++nibble) {
          const auto values = (__m512bh)_mm512_permutexvar_epi16(
              _mm512_srli_epi16(words, static_cast<unsigned>(4 * nibble)), table);
#pragma GCC unroll 16
          for (int m = 0; m < kCount; ++m) {
            int pair;
            __builtin_memcpy(&pair, x + 8 * m + 2 * nibble, sizeof(pair));
            part[m][nibble % kSums] = _mm512_dpbf16_ps(part[m][nibble % kSums], values,
                                                       (__m512bh)_mm512_set1_epi32(pair));
          }
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < kCount; ++m) {
        __m512 total = part[m][0];
#pragma GCC unroll 4
        for (int s = 1; s < kSums; ++s) total = _mm512_add_ps(total, part[m][s]);
        sum[m] = _mm512_fmadd_ps(total, _mm512_load_ps(scale), sum[m]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kCount; ++m) _mm512_storeu_ps(p.out + m * p.out_stride + row, sum[m]);
}

template <int kCount>
void DotPanels(const PrepackedRows& in, const DotProduct& p) {
  const auto code = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(in.code));
  const __m512i table = _mm512_broadcast_i64x4(code);  // twice: bit 4 of an index means nothing
  for (Index row = 0; row < in.rows; row += kPrepackedRows) DotPanel<kCount>(in, p, row, table);
}

constexpr long long kEights = 0x0008000800080008;  // 8 in every word

template <int... kCounts>
constexpr auto DotPanelsTable(std::integer_sequence<int, kCounts...>) {
  return std::array{DotPanels<kCounts + 1>...};
}

}  // namespace

// Groups of 8 columns; in each, the rows one after the other, with columns 1, 5, 0, 4, 3, 7, 2, 6:
// nibble n of both halves of a word of 32 bits, for n = 0 ... 3.
void PackDotPrepacked(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<std::uint16_t*>(out);
  const __m512i order =
      _mm512_add_epi16(_mm512_broadcast_i32x4(_mm_setr_epi16(1, 5, 0, 4, 3, 7, 2, 6)),
                       _mm512_setr_epi64(0, 0, kEights, kEights, 2 * kEights, 2 * kEights,
                                         3 * kEights, 3 * kEights));
  const auto store = [&](Index group, Index m, __m128i columns) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8 * (group * in.rows + m)), columns);
  };
  for (Index k = 0; k < in.cols; k += 32, to += 32 * in.rows) {
    for (Index m = 0; m < in.rows; ++m) {
      const __m512i columns = _mm512_permutexvar_epi16(order, LoadBits32(in, m, k));
      store(0, m, _mm512_castsi512_si128(columns));
      store(1, m, _mm512_extracti32x4_epi32(columns, 1));
      store(2, m, _mm512_extracti32x4_epi32(columns, 2));
      store(3, m, _mm512_extracti32x4_epi32(columns, 3));
    }
  }
}

void DotPrepacked(const PrepackedRows& in, const DotProduct& p) {
  static constexpr auto kTable = DotPanelsTable(std::make_integer_sequence<int, kPrepackedBatch>());
  kTable[static_cast<std::size_t>(p.count - 1)](in, p);
}

void UnpackPanel(const PrepackedRows& in, Index chunk, Index chunks, std::uint8_t* packed,
                 float* scales) {
  PanelScales panel_scales(in, 0, chunk);
  const Index row_bytes = chunks * (kChunk / 2);
  const std::byte* at =
      in.panels + chunk / kPrepackedGroup * panel_scales.bytes() + chunk * kPrepackedChunkBytes;
  alignas(64) float room[kPrepackedGroup * kPrepackedRows];
  for (Index c = 0; c < chunks; c += kPrepackedGroup) {
    const Index n = std::min(kPrepackedGroup, chunks - c);
    const float* scale = panel_scales.Group(at, n, room);
    at += panel_scales.bytes();
    for (Index i = 0; i < n; ++i) {
      for (Index r = 0; r < kPrepackedRows; ++r) {
        scales[r * chunks + c + i] = scale[i * kPrepackedRows + r];
      }
    }
    for (Index i = 0; i < n; i += 2) {  // two chunks make 16 words of every row
      const Index words = 8 * std::min<Index>(2, n - i);
      __m512i v[16];
      for (Index w = 0; w < 16; ++w) {
        v[w] = w < words ? _mm512_load_si512(at + 64 * w) : _mm512_setzero_si512();
      }
      at += 64 * words;
      Transpose16(v);
      for (Index r = 0; r < kPrepackedRows; ++r) {
        _mm512_mask_storeu_epi32(packed + r * row_bytes + (c + i) * (kChunk / 2), FirstLanes(words),
                                 v[r]);
      }
    }
  }
}

}  // namespace qlora::cpu::bf16
#pragma GCC pop_options
