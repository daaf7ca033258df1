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
#include <limits>
#include <utility>

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"
#include "machine/simd_target.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16,avx512vbmi")
// With these target options.
#include "backend/cpu/x86/pair_values-inl.h"
#include "backend/cpu/x86/prepacked_dot-inl.h"

namespace qlora::cpu {
namespace {

constexpr int kTileRows = 16;
constexpr Index kTileColumns = kChunk / 2;
constexpr Index kHalf = 2 * kTileColumns;  // bytes of a row of half a chunk: of a row of a tile
static_assert(kHalf == kCacheLine && kPrepackedRows == kTileRows);
// Rows of x that meet decoded values one after the other: 1.4 MiB of the second-level cache for
// 5632 columns. More rows decode a panel again, which takes an eighth of their products.
constexpr Index kBatch = 128;

struct TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t first_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {kHalf, kHalf, kHalf, kHalf, kHalf, kHalf, kHalf, kHalf};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles 0 ... 3 have sums, so that products of several need not wait for one another, 4 and 5 rows
// of x, and 6 and 7 the halves of a chunk of the weight.
constexpr int kSumTiles = 4;
constexpr int kTileOfX = 4;
constexpr int kTileOfWeight = 6;

// Gives this thread tiles for `count` rows of x, until it is destroyed.
class TilesOf {
 public:
  explicit TilesOf(Index count) {
    TileConfig config;
    const auto rows = static_cast<std::uint8_t>(std::min<Index>(count, kTileRows));
    std::fill_n(config.rows, kTileOfWeight, rows);
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  TilesOf(const TilesOf&) = delete;
  TilesOf& operator=(const TilesOf&) = delete;
  ~TilesOf() { __asm__ volatile("tilerelease"); }
};

// Instructions are written as such, because intrinsics of GCC 12 do not say that they read memory.
template <int kTile>
HWY_INLINE void LoadTile(const void* from) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(kHalf), "i"(kTile)
                   : "memory");
}
template <int kTile>
HWY_INLINE void StoreTile(void* to) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(kHalf), "i"(kTile) : "memory");
}
template <int kTile>
HWY_INLINE void ZeroTile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// sums += x w, of tiles.
template <int kSum, int kX, int kW>
HWY_INLINE void MultiplyTiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kX), "i"(kW));
}

using Values = std::uint32_t[kChunk / 2][kPrepackedRows];  // a chunk: pairs of columns
using Sums = float[kTileRows][kPrepackedRows];

// Packed rows of x: 16 rows after the other, in each half a chunk of columns after the other, of 16
// rows. If there are more than 16 rows, the last tile has the last 16; if fewer, all.
struct PackedX {
  PackedX(Index count, Index cols)
      : rows(std::min<Index>(count, kTileRows)),
        half(rows * kHalf),
        tile(cols / kTileColumns * half) {}

  Index rows;  // of a tile
  Index half;  // bytes of half a chunk of a tile
  Index tile;  // bytes of a tile
};

// sums[t][chunk] = the t-th 16 rows of x times a chunk of the weight, for each t of kTiles.
template <int... kTiles>
HWY_INLINE void MultiplyChunk(const std::byte* x, const PackedX& of, const Values& values,
                              Index chunk, Sums (*sums)[kPrepackedGroup],
                              std::integer_sequence<int, kTiles...>) {
  (ZeroTile<kTiles>(), ...);
  LoadTile<kTileOfWeight>(values);
  ((LoadTile<kTileOfX + kTiles % 2>(x + kTiles * of.tile),
    MultiplyTiles<kTiles, kTileOfX + kTiles % 2, kTileOfWeight>()),
   ...);
  LoadTile<kTileOfWeight + 1>(values + kTileRows);
  ((LoadTile<kTileOfX + kTiles % 2>(x + kTiles * of.tile + of.half),
    MultiplyTiles<kTiles, kTileOfX + kTiles % 2, kTileOfWeight + 1>()),
   ...);
  (StoreTile<kTiles>(sums[kTiles][chunk]), ...);
}

// Up to kPrepackedGroup decoded chunks of a panel, and the columns of x that meet them.
struct DecodedGroup {
  const Values* values = nullptr;
  const float* scales = nullptr;  // (chunks, kPrepackedRows)
  Index chunks = 0;
  bool is_first = true;          // sums begin with it
  const std::byte* x = nullptr;  // packed, of the first tile
  PackedX packed;
};

// Adds the last kRows rows of products with each chunk to out (kRows, 16), scaled.
template <int kRows>
void AddScaled(const DecodedGroup& group, const Sums (&sums)[kPrepackedGroup], Index skipped,
               float* out, Index out_stride) {
  __m512 total[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    total[m] = group.is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + m * out_stride);
  }
  for (Index c = 0; c < group.chunks; ++c) {
    const __m512 scale = _mm512_load_ps(group.scales + c * kPrepackedRows);
    const float(*products)[kPrepackedRows] = sums[c] + skipped;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      total[m] = _mm512_fmadd_ps(_mm512_load_ps(products[m]), scale, total[m]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) _mm512_storeu_ps(out + m * out_stride, total[m]);
}

// Products of kTiles tiles of x, from `tile` on, with each chunk.
template <int kTiles>
HWY_INLINE void MultiplyGroup(const DecodedGroup& group, Index tile,
                              Sums (&sums)[kTiles][kPrepackedGroup]) {
  const std::byte* x = group.x + tile * group.packed.tile;
  for (Index c = 0; c < group.chunks; ++c) {
    MultiplyChunk(x + 2 * c * group.packed.half, group.packed, group.values[c], c, sums,
                  std::make_integer_sequence<int, kTiles>());
  }
}

// Adds the products of kTiles times 16 rows of x, from `row` on, to out.
template <int kTiles>
HWY_INLINE void AddTiles(const DecodedGroup& group, Index row, float* out, Index out_stride) {
  alignas(64) Sums sums[kTiles][kPrepackedGroup];
  MultiplyGroup<kTiles>(group, row / kTileRows, sums);
  for (int t = 0; t < kTiles; ++t) {
    AddScaled<kTileRows>(group, sums[t], 0, out + t * kTileRows * out_stride, out_stride);
  }
}

// The same of the last rows of x, fewer than 16.
HWY_INLINE void AddLastRows(const DecodedGroup& group, Index count, float* out, Index out_stride) {
  static constexpr auto kAdd =
      KernelsFor<kTileRows - 1>([]<int kRows>() { return AddScaled<kRows>; });
  const Index rows = count % kTileRows;
  alignas(64) Sums sums[1][kPrepackedGroup];
  MultiplyGroup<1>(group, count / kTileRows, sums);
  kAdd[rows - 1](group, sums[0], group.packed.rows - rows, out, out_stride);
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
  const std::byte* at = in.panels + row / kPrepackedRows * in.panel_bytes;
  PanelScales scales(in, row, 0);
  alignas(64) float room[kPrepackedGroup * kPrepackedRows];
  alignas(64) Values values[kPrepackedGroup];
  DecodedGroup group = {.values = values, .packed = PackedX(p.count, p.k)};
  for (Index chunk = 0; chunk < in.chunks; chunk += kPrepackedGroup) {
    group.chunks = std::min(kPrepackedGroup, in.chunks - chunk);
    group.scales = scales.Group(at, group.chunks, room);
    group.is_first = chunk == 0;
    group.x = static_cast<const std::byte*>(p.x) + 2 * chunk * group.packed.half;
    for (Index i = 0; i < scales.bytes(); i += 64) {
      _mm_prefetch(Ahead(in, at + i), _MM_HINT_T1);
    }
    at += scales.bytes();
    for (Index c = 0; c < group.chunks; ++c, at += kChunkOfPanel) {
      DecodeChunk(in, at, table, values[c]);
    }
    Index m = 0;
    const auto out = [&] { return p.out + m * p.out_stride + row; };
    for (; m + kSumTiles * kTileRows <= p.count; m += kSumTiles * kTileRows) {
      AddTiles<kSumTiles>(group, m, out(), p.out_stride);
    }
    for (; m + kTileRows <= p.count; m += kTileRows) AddTiles<1>(group, m, out(), p.out_stride);
    if (m < p.count) AddLastRows(group, p.count, out(), p.out_stride);
  }
}

void Dot(const PrepackedRows& in, const DotProduct& p) {
  QLORA_DCHECK(p.count > 0 && p.count <= kBatch);
  const TilesOf tiles(p.count);
  const PairValues table(in.code);
  for (Index row = 0; row < in.rows; row += kPrepackedRows) DotPanel(in, p, row, table);
}

void PackX(const ConstMatrixView& in, void* out) {
  const __m512i order = PairValues::Order();
  const PackedX packed(in.rows, in.cols);
  auto* to = static_cast<std::byte*>(out);
  for (Index first = 0; first < in.rows; first += kTileRows) {
    const Index begin = std::min(first, in.rows - packed.rows);
    for (Index k = 0; k < in.cols; k += kTileColumns) {
      for (Index m = begin; m < begin + packed.rows; ++m, to += kHalf) {
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, LoadBits32(in, m, k)));
      }
    }
  }
}

}  // namespace
}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES

namespace qlora::cpu {

const PrepackedKernels* TilePrepackedKernels() {
  if (ActiveSimdTarget() != SimdTarget::kAmx) return nullptr;
  static const PrepackedKernels kTable = [&] {
    PrepackedKernels table = *FloatPrepackedKernels(true);  // the order of weights is the same
    table.batch = kBatch;
    table.serves_many = true;
    table.fewest_repacked_rows = std::numeric_limits<std::int64_t>::max();
    table.pack_x = PackX;
    table.dot = Dot;
    return table;
  }();
  return &kTable;
}

}  // namespace qlora::cpu
