// Packing and products in float32 lanes, for every target of Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_f32.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_prepacked.h"
// Once per target.
#include "backend/cpu/f32_operands-inl.h"
#include "backend/cpu/kernels_f32_dot-inl.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// A tile keeps kRows * kVectors sums in registers: 24 of the 32 of AVX-512, 12 of the 16 of AVX2.
// The others hold kVectors panel vectors and the broadcast value. At least 10 independent sums
// cover two multiply-adds per cycle of latency 4 to 5.
#if HWY_TARGET == HWY_AVX3
constexpr std::size_t kVectors = 4;
constexpr const char* kName = "avx512";
#elif HWY_TARGET == HWY_AVX2
constexpr std::size_t kVectors = 2;
constexpr const char* kName = "avx2";
#else
constexpr std::size_t kVectors = 4;
constexpr const char* kName = "scalar";
#endif
constexpr std::size_t kSums = HWY_TARGET == HWY_AVX3 ? 24 : 12;
constexpr std::size_t kPanel = kVectors * kLanes;

// Fetches a line into the second-level cache at every call, each `stride` bytes after the one
// before; after `run` of them comes one `jump` bytes farther.
struct Fetcher {
  HWY_INLINE void operator()() {
    constexpr int kRead = 0;
    constexpr int kLocality = 2;
    __builtin_prefetch(line, kRead, kLocality);
    line += stride;
    if (--left > 0) return;
    left = run;
    line += jump;
  }

  const char* line;
  std::int64_t stride;
  std::int64_t run;
  std::int64_t jump;
  std::int64_t left = run;
};
constexpr std::int64_t kFetchDepth = 2;  // values of k per line

// What tile `tile` of `tiles` fetches: its share of p.fetch and up to as much of the next share, a
// line several times where there are few; or else the rows of A that come next.
Fetcher FetcherOf(const Product& p, std::size_t tile, std::size_t tiles, const float* next_rows) {
  const auto all = static_cast<std::size_t>(p.fetch_lines);
  const std::size_t first = all * tile / tiles;
  const auto lines = static_cast<std::int64_t>(all * (tile + 1) / tiles - first);
  if (lines > 0) {
    const auto at = static_cast<std::int64_t>(first) * p.fetch_stride;
    return {.line = static_cast<const char*>(p.fetch) + at,
            .stride = 0,
            .run = std::max<std::int64_t>(1, p.k / (kFetchDepth * lines)),
            .jump = p.fetch_stride};
  }
  constexpr std::int64_t kLineValues = kCacheLine / sizeof(float);
  constexpr std::int64_t kRun = kLineValues / kFetchDepth;  // more rows than most tiles have
  const std::int64_t row = p.a_stride * static_cast<std::int64_t>(sizeof(float));
  return {.line = reinterpret_cast<const char*>(next_rows),
          .stride = row,
          .run = kRun,
          .jump = kCacheLine - kRun * row};
}

template <std::size_t kRows, std::size_t kVecs>
void Tile(const Product& p, const float* HWY_RESTRICT a, float* HWY_RESTRICT c, Fetcher fetch) {
  const FloatTag d;
  const auto a_stride = static_cast<std::size_t>(p.a_stride);
  const auto c_stride = static_cast<std::size_t>(p.c_stride);
  const auto width = static_cast<std::size_t>(p.width);
  const auto* HWY_RESTRICT panel = static_cast<const float*>(p.panel);
  hn::Vec<FloatTag> sum[kRows][kVecs];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVecs; ++v) {
      sum[r][v] = p.add ? hn::LoadU(d, c + r * c_stride + v * kLanes) : hn::Zero(d);
    }
  }
  const auto add = [&](std::size_t k) HWY_ATTR {
    hn::Vec<FloatTag> lane[kVecs];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVecs; ++v) lane[v] = hn::LoadU(d, panel + k * width + v * kLanes);
#pragma GCC unroll 16
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto value = hn::Set(d, a[r * a_stride + k]);
#pragma GCC unroll 16
      for (std::size_t v = 0; v < kVecs; ++v) sum[r][v] = hn::MulAdd(value, lane[v], sum[r][v]);
    }
  };
  const auto count = static_cast<std::size_t>(p.k);
  std::size_t k = 0;
  static_assert(kFetchDepth == 2);
  for (; k + 2 <= count; k += 2) {
    fetch();
    add(k);
    add(k + 1);
  }
  if (k < count) add(k);
#pragma GCC unroll 16
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVecs; ++v) {
      hn::StoreU(sum[r][v], d, c + r * c_stride + v * kLanes);
    }
  }
}

template <std::size_t kVecs>
inline constexpr std::size_t kMostRows = std::min<std::size_t>(kSums / kVecs, 12);

template <std::size_t kVecs, std::size_t... kRows>
constexpr auto Tiles(std::index_sequence<kRows...>) {
  return std::array{Tile<kRows + 1, kVecs>...};
}

// Tiles of nearly the same height: a low one has too few sums.
template <std::size_t kVecs>
void MultiplyVectors(const Product& p) {
  if (static_cast<std::size_t>(p.width) != kVecs * kLanes) {
    if constexpr (kVecs > 1) MultiplyVectors<kVecs - 1>(p);
    return;
  }
  static constexpr auto kTiles = Tiles<kVecs>(std::make_index_sequence<kMostRows<kVecs>>());
  const auto rows = static_cast<std::size_t>(p.rows);
  const std::size_t tiles = (rows + kMostRows<kVecs> - 1) / kMostRows<kVecs>;
  const auto* a = static_cast<const float*>(p.a);
  const auto a_stride = static_cast<std::size_t>(p.a_stride);
  for (std::size_t t = 0; t < tiles; ++t) {
    const std::size_t r = rows * t / tiles;
    const std::size_t next = rows * (t + 1) / tiles;
    kTiles[next - r - 1](p, a + r * a_stride, p.c + r * static_cast<std::size_t>(p.c_stride),
                         FetcherOf(p, t, tiles, a + next * a_stride));
  }
}

void Multiply(const Product& p) { MultiplyVectors<kVectors>(p); }

template <bool kRound>
void PackRows(const ConstMatrixView& in, float scale, void* out, std::int64_t stride) {
  for (std::size_t r = 0; r < static_cast<std::size_t>(in.rows); ++r) {
    const void* row = RowOf(in, r);
    auto* to = static_cast<float*>(out) + r * static_cast<std::size_t>(stride);
    ForEachVector(static_cast<std::size_t>(in.cols), [&](auto d, std::size_t i) HWY_ATTR {
      const auto value = hn::Mul(LoadAs(d, row, in.dtype, i), hn::Set(d, scale));
      hn::StoreU(Operand<kRound>(d, value), d, to + i);
    });
  }
}

template <bool kRound>
void PackPanelOfRows(const ConstMatrixView& in, void* panel, std::int64_t width) {
  const FloatTag d;
  const auto rows = static_cast<std::size_t>(in.rows);
  const auto k = static_cast<std::size_t>(in.cols);
  const auto stride = static_cast<std::size_t>(width);
  for (std::size_t lane = 0; lane < stride; lane += 4) {
    auto* to = static_cast<float*>(panel) + lane;
    std::size_t i = 0;
    for (; i + kLanes <= k; i += kLanes) {
      hn::Vec<FloatTag> v[4];
      for (std::size_t j = 0; j < 4; ++j) {
        v[j] = lane + j < rows ? LoadOperand<kRound>(d, RowOf(in, lane + j), in.dtype, i)
                               : hn::Zero(d);
      }
      StoreColumns(v, to + i * stride, stride);
    }
    const hn::CappedTag<float, 1> d1;
    for (; i < k; ++i) {
      for (std::size_t j = 0; j < 4; ++j) {
        to[i * stride + j] =
            lane + j < rows ? hn::GetLane(LoadOperand<kRound>(d1, RowOf(in, lane + j), in.dtype, i))
                            : 0.0f;
      }
    }
  }
}

template <bool kRound>
void PackRowsTransposed(const ConstMatrixView& in, void* out, std::int64_t stride) {
  const auto rows = static_cast<std::size_t>(in.rows);
  for (std::size_t i = 0; i < rows; ++i) {
    const void* row = RowOf(in, i);
    auto* to = static_cast<float*>(out) + i;
    ForEachVector(static_cast<std::size_t>(in.cols), [&](auto tag, std::size_t r) HWY_ATTR {
      HWY_ALIGN float lanes[kLanes];
      hn::StoreU(LoadOperand<kRound>(tag, row, in.dtype, r), tag, lanes);
      for (std::size_t j = 0; j < hn::Lanes(tag); ++j) {
        to[(r + j) * static_cast<std::size_t>(stride)] = lanes[j];
      }
    });
  }
}

template <bool kRound>
void PackPanelOfColumns(const ConstMatrixView& in, void* panel, std::int64_t width) {
  const auto lanes = static_cast<std::size_t>(in.cols);
  for (std::size_t k = 0; k < static_cast<std::size_t>(in.rows); ++k) {
    const void* row = RowOf(in, k);
    auto* to = static_cast<float*>(panel) + k * static_cast<std::size_t>(width);
    ForEachVector(lanes, [&](auto d, std::size_t i) HWY_ATTR {
      hn::StoreU(LoadOperand<kRound>(d, row, in.dtype, i), d, to + i);
    });
    std::fill(to + lanes, to + width, 0.0f);
  }
}

template <bool kRound>
void DecodeRows(const QuantizedChunks& in, void* out, std::int64_t stride) {
  for (std::int64_t r = 0; r < in.rows; ++r) {
    const std::uint8_t* packed = in.packed + r * in.row_bytes;
    float* to = static_cast<float*>(out) + r * stride;
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk, packed += kChunk / 2, to += kChunk) {
      const BlockTable<kRound> table(in.code, in.scales.At(r, chunk));
      for (std::size_t i = 0; i < kChunk; i += 2 * kLanes) table.Decode(packed + i / 2, to + i);
    }
  }
}

// One chunk.
template <bool kRound>
void DecodePanels(const QuantizedChunks& in, void* panels) {
  const auto k = static_cast<std::size_t>(in.rows);
  auto* to = static_cast<float*>(panels);
  for (std::size_t r = 0; r < k; ++r) {
    const std::uint8_t* packed = in.packed + static_cast<std::int64_t>(r) * in.row_bytes;
    const BlockTable<kRound> table(in.code, in.scales.At(static_cast<std::int64_t>(r), 0));
    for (std::size_t i = 0; i < kChunk; i += 2 * kLanes) {
      table.Decode(packed + i / 2, to + (i / kPanel * k + r) * kPanel + i % kPanel);
    }
  }
}

// Few rows decode fewer at a time, so that panels stay in the first-level cache.
constexpr std::int64_t kFewRows = 64;
constexpr std::int64_t kFewDecodedRows = 128;
static_assert(kFewDecodedRows <= kDecodedRows);

template <bool kRound>
void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product) {
  const std::int64_t most = product.rows <= kFewRows ? kFewDecodedRows : kDecodedRows;
  for (std::int64_t k = 0; k < in.rows; k += most) {
    const std::int64_t rows = std::min(most, in.rows - k);
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
      QuantizedChunks decoded = in;
      decoded.packed += k * in.row_bytes + chunk * (kChunk / 2);
      decoded.scales.values += k * in.scales.stride + chunk;
      decoded.rows = rows;
      DecodePanels<kRound>(decoded, panels);
      Product part = product;
      part.k = rows;
      part.a = static_cast<const float*>(product.a) + k;
      part.c += chunk * kChunk;
      part.add = product.add || k > 0;
      part.panel = panels;
      part.width = kPanel;
      // A line holds two chunks of a row.
      if (product.rows <= kFewRows && chunk == 0 && k + most < in.rows) {
        part.fetch = decoded.packed + most * in.row_bytes;
        part.fetch_lines = std::min(most, in.rows - k - most);
        part.fetch_stride = in.row_bytes;
      }
      for (std::size_t lane = 0; lane < kChunk; lane += kPanel, part.c += kPanel) {
        Multiply(part);
        part.fetch_lines = 0;  // once is enough
        part.panel = static_cast<const float*>(part.panel) + part.k * kPanel;
      }
    }
  }
}

// A tile of multiply whose rows are decoded 64 values at a time into a buffer in the first-level
// cache.
template <bool kRound, std::size_t kRows, std::size_t kVecs>
void ChunksTile(const QuantizedChunks& in, std::size_t row, const Product& p, float* c) {
  const FloatTag d;
  const auto c_stride = static_cast<std::size_t>(p.c_stride);
  const auto width = static_cast<std::size_t>(p.width);
  const std::uint8_t* packed = in.packed + static_cast<std::int64_t>(row) * in.row_bytes;
  const auto* panel = static_cast<const float*>(p.panel);
  hn::Vec<FloatTag> sum[kRows][kVecs];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVecs; ++v) {
      sum[r][v] = p.add ? hn::LoadU(d, c + r * c_stride + v * kLanes) : hn::Zero(d);
    }
  }
  HWY_ALIGN float buffer[kRows][kChunk];
  for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto row_of_tile = static_cast<std::int64_t>(r);
      const std::uint8_t* from = packed + row_of_tile * in.row_bytes + chunk * (kChunk / 2);
      const BlockTable<kRound> table(
          in.code, in.scales.At(static_cast<std::int64_t>(row) + row_of_tile, chunk));
      for (std::size_t i = 0; i < kChunk; i += 2 * kLanes)
        table.Decode(from + i / 2, buffer[r] + i);
    }
    for (std::size_t k = 0; k < kChunk; ++k, panel += width) {
      hn::Vec<FloatTag> lane[kVecs];
#pragma GCC unroll 16
      for (std::size_t v = 0; v < kVecs; ++v) lane[v] = hn::LoadU(d, panel + v * kLanes);
#pragma GCC unroll 16
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto value = hn::Set(d, buffer[r][k]);
#pragma GCC unroll 16
        for (std::size_t v = 0; v < kVecs; ++v) sum[r][v] = hn::MulAdd(value, lane[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVecs; ++v) {
      hn::StoreU(sum[r][v], d, c + r * c_stride + v * kLanes);
    }
  }
}

template <bool kRound, std::size_t kRows, std::size_t kVecs>
void ChunksRows(const QuantizedChunks& in, const Product& p, std::size_t r) {
  for (; r + kRows <= static_cast<std::size_t>(p.rows); r += kRows) {
    ChunksTile<kRound, kRows, kVecs>(in, r, p, p.c + r * static_cast<std::size_t>(p.c_stride));
  }
  if constexpr (kRows > 1) {
    if (r < static_cast<std::size_t>(p.rows)) ChunksRows<kRound, kRows / 2, kVecs>(in, p, r);
  }
}

template <bool kRound, std::size_t kVecs>
void ChunksVectors(const QuantizedChunks& in, const Product& p) {
  constexpr std::size_t kRows = std::min<std::size_t>(kSums / kVecs, 12);
  if (static_cast<std::size_t>(p.width) == kVecs * kLanes) {
    return ChunksRows<kRound, kRows, kVecs>(in, p, 0);
  }
  if constexpr (kVecs > 1) ChunksVectors<kRound, kVecs - 1>(in, p);
}

template <bool kRound>
void MultiplyChunks(const QuantizedChunks& in, const Product& p) {
  ChunksVectors<kRound, kVectors>(in, p);
}

// kPrepacked: whether there are kernels for prepacked weights.
template <bool kRound, bool kPrepacked>
constexpr Kernels kTable = {
    .name = kName,
    .panel = kPanel,
    .vector = std::max<std::size_t>(kLanes, 4),
    .step = 1,
    .bytes = 4,
    .reads_float_rows = !kRound,
    .most_dot_rows = 3 * kDotBatch,
    .most_prepacked_rows = kPrepacked ? 8 * kPrepackedFloatBatch : 0,
    .fewest_repacked_rows = kPrepacked ? 4 : std::numeric_limits<std::int64_t>::max(),
    .prepacked_batch = kPrepackedFloatBatch,
    .multiply = Multiply,
    .pack_rows = PackRows<kRound>,
    .pack_rows_transposed = PackRowsTransposed<kRound>,
    .pack_panel_of_rows = PackPanelOfRows<kRound>,
    .pack_panel_of_columns = PackPanelOfColumns<kRound>,
    .decode_rows = DecodeRows<kRound>,
    .multiply_chunks = MultiplyChunks<kRound>,
    .multiply_decoded_panels = MultiplyDecodedPanels<kRound>,
    .pack_dot_rows = PackDotRows<kRound>,
    .dot_rows = DotRows,
    .pack_dot_chunks = PackDotChunks<kRound>,
    .dot_chunks = DotChunks,
    .pack_dot_prepacked = PackDotPrepacked<kRound>,
    .dot_prepacked = DotPrepacked,
    .unpack_panel = UnpackPanel,
};

template <bool kPrepacked>
const Kernels* TableFor(bool round) {
  return round ? &kTable<true, kPrepacked> : &kTable<false, kPrepacked>;
}

}  // namespace

const Kernels* TableOfTarget(bool round) {
  if constexpr (HWY_TARGET == HWY_AVX3) {
    if (HasVbmi()) return TableFor<true>(round);
  }
  return TableFor<false>(round);
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(TableOfTarget);
const Kernels& FloatKernels(bool round) { return *HWY_DYNAMIC_DISPATCH(TableOfTarget)(round); }

}  // namespace qlora::cpu
#endif  // HWY_ONCE
