// The columns of a 4-bit weight as panels of bfloat16 pairs, decoded while they are multiplied
// (AVX512_BF16, see bf16_tile.cc).
//
// The first tile of rows decodes: it has the sums of its rows for 16 (32, 64) lanes in registers,
// and stores the decoded values as a panel. The other rows then multiply that panel as usual.
// Meanwhile the packed bytes and tables of the next piece replace the bytes and tables that are
// used up:
//
//   piece i:      decode + multiply, first rows   | multiply, other rows
//   piece i + 1:  gather (in the last vectors)    |
#include <algorithm>

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_format-inl.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {
namespace {

// kVectors vectors of a tile of Multiply from `first` on, decoded as they are needed and, unless it
// is null, stored in `panel` for other rows. The last vectors replace pairs by those that come
// next. All this runs on other units than vdpbf16ps and overlaps with it.
template <int kRows, int kVectors, bool kLast>
HWY_INLINE void DecodingVectors(int first, RowPair* pairs, const PairGatherer& next,
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
    // Otherwise GCC makes a pointer for every row, more than there are registers.
    __asm__("" : "+r"(a_stride));
    AddPairs([&](int r) { return PairAt(a + r * a_stride + 2 * i); }, lane, sum);
  }
  StoreSums(p, sum, c);
}

// The first tile of MultiplyDecodedPanels. Few rows take several vectors at a time, so that
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

}  // namespace

void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product) {
  static constexpr auto kTiles =
      KernelsFor<kDecodingRows>([]<int kRows>() { return DecodingTile<kRows>; });
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
                        .packed = in.At(row, chunk),
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
HWY_POP_ATTRIBUTES
