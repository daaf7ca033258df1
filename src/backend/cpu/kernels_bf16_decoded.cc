// The columns of a 4-bit weight as panels of bfloat16 pairs, decoded while they are multiplied
// (AVX512_BF16, see kernels_bf16.cc).
#include "backend/cpu/kernels_bf16_decoded.h"

// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/bf16_lanes-inl.h"
#include "backend/cpu/kernels_bf16.h"

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")

namespace qlora::cpu::bf16 {
namespace {

// Pair i of every 16 lies in byte i / 2 of eight of each row: in word i / 4 of four.
struct alignas(64) PairPlaces {
  std::uint16_t words[32] = {};
  std::uint16_t shifts[32] = {};

  constexpr PairPlaces() {
    for (int i = 0; i < 16; ++i) {
      for (int row = 0; row < 2; ++row) {
        words[2 * i + row] = static_cast<std::uint16_t>(16 * row + i / 4);
        shifts[2 * i + row] = static_cast<std::uint16_t>(i / 2 % 2 * 8 + (1 - i % 2) * 4);
      }
    }
  }
};
constexpr PairPlaces kPairPlaces;

// The chunks of two rows of a weight, and their values: 16 of the first row, 16 of the second.
struct RowPair {
  __m512i packed;
  __m512i table;
};

// Brings the pairs of rows of one chunk together: rows lie too far apart for the processor to see
// where the next ones are, and often at a distance that leaves them few lines of the cache.
struct PairGatherer {
  __m512 code;
  const std::uint8_t* packed;
  Index row_bytes;
  const float* scales;
  Index stride;  // of scales
  Index rows;    // 0: none

  Index pairs() const { return (rows + 1) / 2; }
  inline __attribute__((always_inline)) RowPair operator()(Index pair) const {
    const std::uint8_t* from = packed + 2 * pair * row_bytes;
    constexpr Index kAhead = 128;  // rows
    const std::uint8_t* later = from + kAhead * row_bytes;
    _mm_prefetch(reinterpret_cast<const char*>(later), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(later + row_bytes), _MM_HINT_T1);
    // After an odd last row comes one of zeros.
    const bool both = 2 * pair + 1 < rows;
    const __m512i even =
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __m256i odd =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(both ? from + row_bytes : from));
    const float* scale = scales + 2 * pair * stride;
    const __m512 odd_scale = _mm512_set1_ps(both ? scale[stride] : 0.0f);
    return {_mm512_inserti64x4(even, odd, 1),
            (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(code, odd_scale),
                                         _mm512_mul_ps(code, _mm512_set1_ps(*scale)))};
  }
};

// Decodes the chunks of two rows to lanes of pairs, both rows at once.
class PairDecoder {
 public:
  PairDecoder() {}  // not defaulted: GCC would compile it without the target options

  // Pairs kVector * part ... of the chunks.
  inline __attribute__((always_inline)) __m512i operator()(const RowPair& pair, int part) const {
    const __m512i from = _mm512_add_epi16(words_, _mm512_set1_epi16(static_cast<short>(4 * part)));
    const __m512i words = _mm512_srlv_epi16(_mm512_permutexvar_epi16(from, pair.packed), shifts_);
    // words & 0x0f | second_row
    const __m512i index = _mm512_ternarylogic_epi32(words, nibble_, second_row_, 0xea);
    return _mm512_permutexvar_epi16(index, pair.table);
  }

 private:
  const __m512i words_ = _mm512_load_si512(kPairPlaces.words);
  const __m512i shifts_ = _mm512_load_si512(kPairPlaces.shifts);
  const __m512i nibble_ = _mm512_set1_epi16(0x0f);
  const __m512i second_row_ = _mm512_set1_epi32(0x00100000);
};

// kVectors vectors of a tile of multiply from `first` on, decoded on the way and, unless it is
// null, stored in `panel` for other rows. The last vectors replace pairs by those that come next.
// All this runs on other units than vdpbf16ps and overlaps with it.
template <int kRows, int kVectors, bool kLast>
inline __attribute__((always_inline)) void DecodingVectors(int first, RowPair* pairs,
                                                           const PairGatherer& next,
                                                           std::uint32_t* panel, const Product& p) {
  const PairDecoder decode;
  const auto* a = static_cast<const std::uint16_t*>(p.a);
  Index a_stride = p.a_stride;
  const Index count = p.k / 2;
  const PairGatherer gather = next;  // a copy, which stores to `pairs` cannot change
  const Index gathered = gather.pairs();
  float* c = p.c + first * kVector;
  __m512 sum[kRows][kVectors];
  LoadSums(p, c, sum);
  for (Index i = 0; i < count; ++i) {
    __m512bh lane[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512i decoded = decode(pairs[i], first + v);
      if (panel != nullptr) {
        _mm512_storeu_si512(panel + i * kPanel + (first + v) * kVector, decoded);
      }
      lane[v] = (__m512bh)decoded;
    }
    if (kLast && i < gathered) pairs[i] = gather(i);
    // Else GCC makes a pointer for every row, more than there are registers.
    __asm__("" : "+r"(a_stride));
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + r * a_stride + 2 * i, sizeof(pair));
      const auto value = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], value, lane[v]);
    }
  }
  StoreSums(p, sum, c);
}

// The first tile of multiply_decoded_panels. Few rows take several vectors at a time, so that
// there are enough sums to fill the latency of vdpbf16ps.
constexpr int kDecodingRows = 16;

template <int kRows>
void DecodingTile(RowPair* pairs, const PairGatherer& next, std::uint32_t* panel,
                  const Product& p) {
  constexpr int kVectors = kRows <= 4 ? 4 : kRows <= 8 ? 2 : 1;
  constexpr int kLastVector = kPanel / kVector - kVectors;
  for (int first = 0; first < kLastVector; first += kVectors) {
    DecodingVectors<kRows, kVectors, false>(first, pairs, next, panel, p);
  }
  DecodingVectors<kRows, kVectors, true>(kLastVector, pairs, next, panel, p);
}

template <int... kHeights>
constexpr auto DecodingTiles(std::integer_sequence<int, kHeights...>) {
  return std::array{DecodingTile<kHeights + 1>...};
}

}  // namespace

void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product) {
  static constexpr auto kTiles = DecodingTiles(std::make_integer_sequence<int, kDecodingRows>());
  const Index height = std::min<Index>(product.rows, kDecodingRows);
  const auto tile = kTiles[height - 1];
  // A piece: kDecodedRows rows of one chunk. The chunks of the same rows follow one another,
  // because a line of the cache holds two of a row.
  const Index pieces = (in.rows + kDecodedRows - 1) / kDecodedRows * in.chunks;
  const auto row_of = [&](Index piece) { return piece / in.chunks * kDecodedRows; };
  const auto pairs_of = [&](Index piece) {
    const Index row = row_of(piece);
    const Index chunk = piece % in.chunks;
    return PairGatherer{.code = _mm512_loadu_ps(in.code),
                        .packed = in.packed + row * in.row_bytes + chunk * (kChunk / 2),
                        .row_bytes = in.row_bytes,
                        .scales = in.scales.values + row * in.scales.stride + chunk,
                        .stride = in.scales.stride,
                        .rows = std::min(kDecodedRows, in.rows - row)};
  };
  RowPair pairs[kDecodedRows / 2];
  const PairGatherer begin = pairs_of(0);
  for (Index i = 0; i < begin.pairs(); ++i) pairs[i] = begin(i);
  for (Index piece = 0; piece < pieces; ++piece) {
    const Index row = row_of(piece);
    Product part = product;
    part.k = std::min(kDecodedRows, product.k - row);
    part.a = static_cast<const std::uint16_t*>(product.a) + row;
    part.c += piece % in.chunks * kChunk;
    part.add = product.add || row > 0;
    Product rest = part;
    rest.rows -= height;
    const PairGatherer next = piece + 1 < pieces ? pairs_of(piece + 1) : PairGatherer{};
    tile(pairs, next, rest.rows > 0 ? static_cast<std::uint32_t*>(panels) : nullptr, part);
    if (rest.rows == 0) continue;
    rest.a = static_cast<const std::uint16_t*>(part.a) + height * part.a_stride;
    rest.c += height * part.c_stride;
    rest.panel = panels;
    rest.width = kPanel;
    Multiply(rest);
  }
}

}  // namespace qlora::cpu::bf16
#pragma GCC pop_options
