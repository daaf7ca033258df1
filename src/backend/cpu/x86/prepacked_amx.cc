// Dot products of any number of rows of x with prepacked 4-bit weights, by the tiles of AMX
// (AMX_BF16). A tile is 16 rows of 64 bytes; tdpbf16ps multiplies 16 rows of x, 32 columns of each,
// with 16 rows of the weight. A look-up makes a row of the second operand, the same pair of columns
// of 16 rows of the weight, so that half a chunk is a tile:
//
//   x    (16 rows, 16 pairs)          row m:   x(m, pair 0) | x(m, pair 1) | ...
//   w    (16 pairs, 16 rows)          pair k:  w(0, k) | w(1, k) | ... | w(15, k)
//   sums (16 rows, 16 rows of w) += x w       of a chunk; then scaled, and added to those of others
//
// Values are rounded to bfloat16 before they are scaled. The sum of a row of x and a row of the
// weight runs over chunks in ascending order, and depends on no other row.
#include <algorithm>
#include <array>
#include <limits>

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"
#include "backend/cpu/x86/tiles-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16,avx512vbmi")
// With these target options.
#include "backend/cpu/x86/pair_values-inl.h"
#include "backend/cpu/x86/prepacked_dot-inl.h"

namespace qlora::cpu::bf16 {
namespace {

constexpr Index kTileColumns = kChunk / 2;
constexpr Index kHalf = 2 * kTileColumns;  // bytes of a row of half a chunk: of a row of a tile
static_assert(kHalf == kTileBytes && kPrepackedRows == kTileRows);
// Rows of x that meet decoded values one after the other: 1.4 MiB of the second-level cache for
// 5632 columns. More rows decode a panel again, which takes an eighth of their products.
constexpr Index kBatch = 128;

// Tiles: 0 has sums, 2 and 3 the halves of 16 rows of x; 1, 4 and 5 the same of fewer rows, the
// last ones; 6 and 7 the halves of a chunk of the weight.
TileConfig ConfigFor(Index count) {
  TileConfig config;
  const auto last = static_cast<std::uint8_t>(count % kTileRows);
  if (last != 0) config.rows[1] = config.rows[4] = config.rows[5] = last;
  return config;
}

using Values = std::uint32_t[kChunk / 2][kPrepackedRows];  // a chunk: pairs of columns
using Sums = float[kTileRows][kPrepackedRows];

// sums = 16 rows of x, or the last ones, times a chunk of the weight; `half` bytes after a half of
// the columns of x comes the next one.
template <bool kLast>
HWY_INLINE void MultiplyChunk(const std::byte* x, Index half, const Values& values, Sums& sums) {
  constexpr int kSums = kLast ? 1 : 0;
  constexpr int kRowsOfX = kLast ? 4 : 2;
  ClearTile<kSums>();
  LoadTile<kRowsOfX>(x, kHalf);
  LoadTile<6>(values, kHalf);
  MultiplyPairs<kSums, kRowsOfX, 6>();
  LoadTile<kRowsOfX + 1>(x + half, kHalf);
  LoadTile<7>(values + kTileRows, kHalf);
  MultiplyPairs<kSums, kRowsOfX + 1, 7>();
  StoreTile<kSums>(sums, kHalf);
}

// Up to kPrepackedGroup decoded chunks of a panel, and the columns of x that meet them.
struct DecodedGroup {
  const Values* values = nullptr;
  const float* scales = nullptr;  // (chunks, kPrepackedRows)
  Index chunks = 0;
  bool is_first = true;          // sums begin with it
  const std::byte* x = nullptr;  // of all rows, half a chunk of columns after the other
  Index half = 0;                // bytes of half a chunk of all rows
};

// Adds the products of rows [row, row + kRows) of x to out (kRows, 16).
template <int kRows>
void AddRows(const DecodedGroup& group, Index row, float* out, Index out_stride) {
  // The products of a chunk are stored while those of the next one are computed.
  alignas(64) Sums sums[kPrepackedGroup];
  const std::byte* x = group.x + row * kHalf;
  __m512 total[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    total[m] = group.is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + m * out_stride);
  }
  for (Index c = 0; c < group.chunks; ++c) {
    MultiplyChunk<(kRows < kTileRows)>(x + 2 * c * group.half, group.half, group.values[c],
                                       sums[c]);
  }
  for (Index c = 0; c < group.chunks; ++c) {
    const __m512 scale = _mm512_load_ps(group.scales + c * kPrepackedRows);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      total[m] = _mm512_fmadd_ps(_mm512_load_ps(sums[c][m]), scale, total[m]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) _mm512_storeu_ps(out + m * out_stride, total[m]);
}

HWY_INLINE void DecodeChunk(const PrepackedRows& in, const std::byte* at, const PairValues& table,
                            Values& values) {
  constexpr int kSteps = PairValues::kSteps;
  for (Index i = 0; i < kChunk / 8; ++i, at += 64) {
    _mm_prefetch(Ahead(in, at), _MM_HINT_T1);
    const __m512i words = PairValues::Load(at, 0);
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step) {
      _mm512_store_si512(values[i * kSteps + step], (__m512i)table.Lookup(words, step));
    }
  }
}

void DotPanel(const PrepackedRows& in, const DotProduct& p, Index row, const PairValues& table) {
  static constexpr auto kLastRows =
      KernelsFor<kTileRows - 1>([]<int kRows>() { return AddRows<kRows>; });
  const std::byte* at = in.panels + row / kPrepackedRows * in.panel_bytes;
  PanelScales scales(in, row, 0);
  alignas(64) float room[kPrepackedGroup * kPrepackedRows];
  alignas(64) Values values[kPrepackedGroup];
  DecodedGroup group = {.values = values, .half = p.count * kHalf};
  for (Index chunk = 0; chunk < in.chunks; chunk += kPrepackedGroup) {
    group.chunks = std::min(kPrepackedGroup, in.chunks - chunk);
    group.scales = scales.Group(at, group.chunks, room);
    group.is_first = chunk == 0;
    group.x = static_cast<const std::byte*>(p.x) + 2 * chunk * group.half;
    for (Index i = 0; i < scales.bytes(); i += 64) {
      _mm_prefetch(Ahead(in, at + i), _MM_HINT_T1);
    }
    at += scales.bytes();
    for (Index c = 0; c < group.chunks; ++c, at += kChunkOfPanel) {
      DecodeChunk(in, at, table, values[c]);
    }
    Index m = 0;
    for (; m + kTileRows <= p.count; m += kTileRows) {
      AddRows<kTileRows>(group, m, p.out + m * p.out_stride + row, p.out_stride);
    }
    if (m < p.count) {
      kLastRows[p.count - m - 1](group, m, p.out + m * p.out_stride + row, p.out_stride);
    }
  }
}

void Dot(const PrepackedRows& in, const DotProduct& p) {
  QLORA_DCHECK(p.count > 0 && p.count <= kBatch);
  const Tiles tiles(ConfigFor(p.count));
  const PairValues table(in.code);
  for (Index row = 0; row < in.rows; row += kPrepackedRows) DotPanel(in, p, row, table);
}

// Half a chunk of columns after the other; in each, the rows one after the other.
void PackX(const ConstMatrixView& in, void* out) {
  const __m512i order = PairValues::Order();
  auto* to = static_cast<std::byte*>(out);
  for (Index k = 0; k < in.cols; k += kTileColumns) {
    for (Index m = 0; m < in.rows; ++m, to += kHalf) {
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, LoadBits32(in, m, k)));
    }
  }
}

}  // namespace

const PrepackedKernels* PrepackedTiles() {
  const PrepackedKernels* vectors = Prepacked();
  if (vectors == nullptr) return nullptr;
  static const PrepackedKernels kTable = [&] {
    PrepackedKernels table = *vectors;  // the order of weights is the same
    table.batch = kBatch;
    table.serves_many = true;
    table.fewest_repacked_rows = std::numeric_limits<std::int64_t>::max();
    table.pack_x = PackX;
    table.dot = Dot;
    return table;
  }();
  return &kTable;
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
