// Products of panels of bfloat16 pairs with tiles of AMX (AMX_BF16). tdpbf16ps multiplies 16 rows
// of a, 32 values of k each, with 16 lanes of a panel, 16 pairs of k each, as bf16_tile.cc
// describes them, and adds to 16 x 16 sums. Four tiles of sums meet two of rows and two of lanes:
//
//                         panel
//                 lanes 0 ... 15   16 ... 31
//                +--------------+-----------+
//                | tile 6       | tile 7    |   16 pairs of k
//       +--------+--------------+-----------+
//   a   | tile 4 | tile 0       | tile 1    |   rows 0 ... 15
//       | tile 5 | tile 2       | tile 3    |   rows 16 ... 31
//       +--------+--------------+-----------+
//
// A sum takes 32 values of k at a time, in ascending order from the first value of the product on:
// the result depends on its row and lane alone.
#include <algorithm>

#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_format-inl.h"
#include "backend/cpu/x86/tiles-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {
namespace {

constexpr Index kTileDepth = 32;  // values of k
// Values of k between two visits of a tile of sums: 48 rows of them are half of the first-level
// cache, 32 lanes a third.
constexpr Index kTileVisit = 256;

// A product, or some rows and values of k of one.
struct Part {
  const std::byte* a;
  const std::byte* panel;
  float* c;
  Index rows;  // a multiple of kTileRows, or fewer
  Index k;     // a multiple of kTileDepth, or fewer
  Index width;
  Index a_stride;      // bytes
  Index panel_stride;  // bytes from one pair to the next
  Index c_stride;      // elements
  bool add;
};

template <int kRows, int kVectors, class Body>
HWY_INLINE void ForEachTile(const Body& body) {
  body.template operator()<0, 0>();
  if constexpr (kVectors > 1) body.template operator()<0, 1>();
  if constexpr (kRows > 1) body.template operator()<1, 0>();
  if constexpr (kRows > 1 && kVectors > 1) body.template operator()<1, 1>();
}

// kRows x kVectors tiles of sums.
template <int kRows, int kVectors>
void Block(const Part& p, Index row, Index lane) {
  const std::byte* a = p.a + row * p.a_stride;
  const std::byte* panel = p.panel + lane * 4;
  const Index c_stride = p.c_stride * 4;
  const auto sums = [&](int r, int v) {
    return p.c + (row + r * kTileRows) * p.c_stride + lane + v * kVector;
  };
  ForEachTile<kRows, kVectors>([&]<int r, int v>() {
    if (p.add) return LoadTile<2 * r + v>(sums(r, v), c_stride);
    ClearTile<2 * r + v>();
  });
  for (Index k = 0; k < p.k; k += kTileDepth) {
    LoadTile<4>(a, p.a_stride);
    LoadTile<6>(panel, p.panel_stride);
    MultiplyPairs<0, 4, 6>();
    if constexpr (kVectors > 1) {
      LoadTile<7>(panel + kTileBytes, p.panel_stride);
      MultiplyPairs<1, 4, 7>();
    }
    if constexpr (kRows > 1) {
      LoadTile<5>(a + kTileRows * p.a_stride, p.a_stride);
      MultiplyPairs<2, 5, 6>();
    }
    if constexpr (kRows > 1 && kVectors > 1) MultiplyPairs<3, 5, 7>();
    a += kTileBytes;
    panel += kTileDepth / 2 * p.panel_stride;
  }
  ForEachTile<kRows, kVectors>([&]<int r, int v>() { StoreTile<2 * r + v>(sums(r, v), c_stride); });
}

template <int kVectors>
void BlocksOfLanes(const Part& p, Index lane) {
  Index row = 0;
  for (; row + kTileRows < p.rows; row += 2 * kTileRows) Block<2, kVectors>(p, row, lane);
  if (row < p.rows) Block<1, kVectors>(p, row, lane);
}

// All of a part with tiles of one size.
void MultiplyPart(const Part& part) {
  TileConfig config;
  const auto rows = static_cast<std::uint8_t>(std::min<Index>(part.rows, kTileRows));
  const auto depth = static_cast<std::uint8_t>(std::min<Index>(part.k, kTileDepth));
  for (const int tile : {0, 1, 2, 3, 4, 5}) config.rows[tile] = rows;
  for (const int tile : {4, 5}) config.row_bytes[tile] = depth * 2;
  for (const int tile : {6, 7}) config.rows[tile] = depth / 2;
  const Tiles tiles(config);
  Part visit = part;
  for (Index k = 0; k < part.k; k += kTileVisit) {
    visit.k = std::min(kTileVisit, part.k - k);
    Index lane = 0;
    for (; lane + kVector < part.width; lane += 2 * kVector) BlocksOfLanes<2>(visit, lane);
    if (lane < part.width) BlocksOfLanes<1>(visit, lane);
    visit.a += 2 * kTileVisit;
    visit.panel += kTileVisit / 2 * part.panel_stride;
    visit.add = true;
  }
}

// Whole tiles of rows first, then the other rows; for each, whole tiles of k first.
void MultiplyRows(const Product& p, Index row, Index rows) {
  if (rows == 0) return;
  const Index whole = p.k / kTileDepth * kTileDepth;
  Part part = {.a = static_cast<const std::byte*>(p.a) + row * p.a_stride * 2,
               .panel = static_cast<const std::byte*>(p.panel),
               .c = p.c + row * p.c_stride,
               .rows = rows,
               .k = whole,
               .width = p.width,
               .a_stride = p.a_stride * 2,
               .panel_stride = p.width * 4,
               .c_stride = p.c_stride,
               .add = p.add};
  if (whole > 0) MultiplyPart(part);
  if (whole == p.k) return;
  part.a += whole * 2;
  part.panel += whole / 2 * part.panel_stride;
  part.k = p.k - whole;
  part.add = p.add || whole > 0;
  MultiplyPart(part);
}

}  // namespace

void MultiplyTiles(const Product& p) {
  const Index whole = p.rows / kTileRows * kTileRows;
  MultiplyRows(p, 0, whole);
  MultiplyRows(p, whole, p.rows - whole);
}

void MultiplyDecodedPanelsTiles(const QuantizedChunks& in, void* panels, const Product& product) {
  const PairDecoder decode;
  auto* to = static_cast<std::uint32_t*>(panels);
  Product part = product;
  part.panel = panels;
  part.width = kPanel;
  for (Index row = 0; row < in.rows; row += kDecodedRows) {
    part.k = std::min(kDecodedRows, product.k - row);
    part.a = static_cast<const std::uint16_t*>(product.a) + row;
    part.add = product.add || row > 0;
    for (Index chunk = 0; chunk < in.chunks; ++chunk) {
      const PairGatherer pairs = {.code = _mm512_loadu_ps(in.code),
                                  .packed = in.At(row, chunk),
                                  .row_bytes = in.row_bytes,
                                  .scales = in.scales.values + row * in.scales.stride + chunk,
                                  .stride = in.scales.stride,
                                  .rows = std::min(kDecodedRows, in.rows - row)};
      for (Index i = 0; i < pairs.pairs(); ++i) {
        const RowPair pair = pairs(i);
#pragma GCC unroll 4
        for (int v = 0; v < kPanel / kVector; ++v) {
          _mm512_store_si512(to + i * kPanel + v * kVector, decode(pair, v));
        }
      }
      part.c = product.c + chunk * kChunk;
      MultiplyTiles(part);
    }
  }
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
