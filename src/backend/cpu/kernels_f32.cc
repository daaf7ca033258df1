// Packing and products in float32 lanes, for every target of Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_f32.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/kernels.h"
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

template <std::size_t kRows, std::size_t kVecs>
HWY_INLINE void Tile(const Product& p, const float* HWY_RESTRICT a, float* HWY_RESTRICT c) {
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
  for (std::size_t k = 0; k < static_cast<std::size_t>(p.k); ++k) {
    hn::Vec<FloatTag> lane[kVecs];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVecs; ++v) lane[v] = hn::LoadU(d, panel + k * width + v * kLanes);
#pragma GCC unroll 16
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto value = hn::Set(d, a[r * a_stride + k]);
#pragma GCC unroll 16
      for (std::size_t v = 0; v < kVecs; ++v) sum[r][v] = hn::MulAdd(value, lane[v], sum[r][v]);
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

// Rows from `r` on in tiles of kRows, the rest in tiles of half as many, and so on.
template <std::size_t kRows, std::size_t kVecs>
void MultiplyRows(const Product& p, std::size_t r) {
  const auto rows = static_cast<std::size_t>(p.rows);
  const auto* a = static_cast<const float*>(p.a);
  for (; r + kRows <= rows; r += kRows) {
    Tile<kRows, kVecs>(p, a + r * static_cast<std::size_t>(p.a_stride),
                       p.c + r * static_cast<std::size_t>(p.c_stride));
  }
  if constexpr (kRows > 1) {
    if (r < rows) MultiplyRows<kRows / 2, kVecs>(p, r);
  }
}

template <std::size_t kVecs>
void MultiplyVectors(const Product& p) {
  constexpr std::size_t kRows = std::min<std::size_t>(kSums / kVecs, 12);
  if (static_cast<std::size_t>(p.width) == kVecs * kLanes) return MultiplyRows<kRows, kVecs>(p, 0);
  if constexpr (kVecs > 1) MultiplyVectors<kVecs - 1>(p);
}

void Multiply(const Product& p) { MultiplyVectors<kVectors>(p); }

// Operands rounded to bfloat16 (kRound) or not.
template <bool kRound, class D>
HWY_INLINE hn::Vec<D> Operand(D d, hn::Vec<D> v) {
  if constexpr (kRound) return RoundToBFloat16(d, v);
  return v;
}
template <bool kRound, class D>
HWY_INLINE hn::Vec<D> LoadOperand(D d, const void* row, DType dtype, std::size_t i) {
  return Operand<kRound>(d, LoadAs(d, row, dtype, i));
}

const void* RowOf(const ConstMatrixView& m, std::size_t row) {
  return static_cast<const char*>(m.data) +
         row * static_cast<std::size_t>(m.stride) * (m.dtype == DType::kF32 ? 4 : 2);
}

// out[j * stride + i] = lane j of v[i], for i < 4.
HWY_INLINE void StoreColumns(const hn::Vec<FloatTag> (&v)[4], float* out, std::size_t stride) {
#if HWY_TARGET == HWY_SCALAR
  (void)stride;
  for (std::size_t i = 0; i < 4; ++i) out[i] = hn::GetLane(v[i]);
#else
  const FloatTag d;
  const hn::CappedTag<float, 4> d4;
  HWY_ALIGN float four[4 * kLanes];
  hn::StoreInterleaved4(v[0], v[1], v[2], v[3], d, four);
  for (std::size_t j = 0; j < kLanes; ++j) {
    hn::StoreU(hn::LoadU(d4, four + 4 * j), d4, out + j * stride);
  }
#endif
}

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
  // Row r of the result is lane 0 ... of row r of a panel as wide as the stride.
  const FloatTag d;
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
  (void)d;
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

// The 16 values of a block, looked up by vectors of nibbles.
template <bool kRound>
class BlockTable {
 public:
  HWY_INLINE BlockTable(const float* code, float scale) {
    const FloatTag d;
    ForEachVector(16, [&](auto tag, std::size_t i) HWY_ATTR {
      const auto value = hn::Mul(hn::LoadU(tag, code + i), hn::Set(tag, scale));
      hn::StoreU(Operand<kRound>(tag, value), tag, values_ + i);
    });
    (void)d;
  }

  // index: lanes in [0, 16).
  template <class VU32>
  HWY_INLINE hn::Vec<FloatTag> Lookup(VU32 index) const {
    const FloatTag d;
#if HWY_TARGET == HWY_AVX3
    return hn::TableLookupLanes(hn::Load(d, values_), hn::IndicesFromVec(d, index));
#elif HWY_TARGET == HWY_AVX2
    const hn::RebindToUnsigned<FloatTag> d32;
    const auto low = hn::IndicesFromVec(d, hn::And(index, hn::Set(d32, 7)));
    return hn::IfThenElse(hn::RebindMask(d, hn::TestBit(index, hn::Set(d32, 8))),
                          hn::TableLookupLanes(hn::Load(d, values_ + 8), low),
                          hn::TableLookupLanes(hn::Load(d, values_), low));
#else
    return hn::Set(d, values_[hn::GetLane(index)]);
#endif
  }

  // Decodes 2 * kLanes consecutive values, those of even and those of odd index.
  HWY_INLINE void Decode(const std::uint8_t* packed, hn::Vec<FloatTag>& even,
                         hn::Vec<FloatTag>& odd) const {
    const hn::RebindToUnsigned<FloatTag> d32;
    const hn::Rebind<std::uint8_t, FloatTag> d8;
    const auto bytes = hn::PromoteTo(d32, hn::LoadU(d8, packed));
    even = Lookup(hn::ShiftRight<4>(bytes));
    odd = Lookup(hn::And(bytes, hn::Set(d32, 15)));
  }
  HWY_INLINE void Decode(const std::uint8_t* packed, float* out) const {
    const FloatTag d;
    hn::Vec<FloatTag> even;
    hn::Vec<FloatTag> odd;
    Decode(packed, even, odd);
#if HWY_TARGET == HWY_SCALAR
    out[0] = hn::GetLane(even);
    out[1] = hn::GetLane(odd);
    (void)d;
#else
    hn::StoreInterleaved2(even, odd, d, out);
#endif
  }

 private:
  HWY_ALIGN float values_[16];
};

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

template <bool kRound>
void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product) {
  DecodePanels<kRound>(in, panels);
  Product part = product;
  part.panel = panels;
  part.width = kPanel;
  for (std::size_t lane = 0; lane < kChunk; lane += kPanel, part.c += kPanel) {
    Multiply(part);
    part.panel = static_cast<const float*>(part.panel) + part.k * kPanel;
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

// Independent sums of a dot product: a multiply-add takes about four cycles, two start in each.
constexpr std::size_t SumsFor(std::size_t count) { return count <= 2 ? 4 : 2; }

// Groups of kChunk columns; in each, the rows one after the other, padded with zeros. kSplit: the
// values of even index come before those of odd index.
template <bool kRound, bool kSplit>
void PackDot(const ConstMatrixView& in, void* out) {
  const hn::CappedTag<float, 1> d1;
  auto* to = static_cast<float*>(out);
  const auto cols = static_cast<std::size_t>(in.cols);
  for (std::size_t k = 0; k < cols; k += kChunk) {
    for (std::size_t m = 0; m < static_cast<std::size_t>(in.rows); ++m, to += kChunk) {
      const void* row = RowOf(in, m);
      for (std::size_t i = 0; i < kChunk; ++i) {
        const std::size_t place = kSplit ? i % 2 * (kChunk / 2) + i / 2 : i;
        to[place] =
            k + i < cols ? hn::GetLane(LoadOperand<kRound>(d1, row, in.dtype, k + i)) : 0.0f;
      }
    }
  }
}

template <std::size_t kCount>
void DotRowsOf(const void* rows, std::int64_t stride, const DotProduct& p) {
  constexpr std::size_t kParts = SumsFor(kCount);
  const FloatTag d;
  const auto n = static_cast<std::size_t>(p.k);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const float* row = static_cast<const float*>(rows) + r * stride;
    const auto* x = static_cast<const float*>(p.x);
    hn::Vec<FloatTag> sum[kCount][kParts];
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
      for (std::size_t s = 0; s < kParts; ++s) sum[m][s] = hn::Zero(d);
    }
    const auto add = [&](const float* weights) HWY_ATTR {
      for (std::size_t i = 0; i < kChunk; i += kParts * kLanes) {
#pragma GCC unroll 4
        for (std::size_t s = 0; s < kParts; ++s) {
          const auto weight = hn::LoadU(d, weights + i + s * kLanes);
#pragma GCC unroll 8
          for (std::size_t m = 0; m < kCount; ++m) {
            const auto value = hn::LoadU(d, x + m * kChunk + i + s * kLanes);
            sum[m][s] = hn::MulAdd(weight, value, sum[m][s]);
          }
        }
      }
      x += kCount * kChunk;
    };
    std::size_t k = 0;
    for (; k + kChunk <= n; k += kChunk) add(row + k);
    if (k < n) {
      HWY_ALIGN float rest[kChunk] = {};
      std::copy(row + k, row + n, rest);
      add(rest);
    }
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kCount; ++m) {
      auto total = hn::Add(sum[m][0], sum[m][1]);
      if constexpr (kParts == 4) total = hn::Add(total, hn::Add(sum[m][2], sum[m][3]));
      p.out[static_cast<std::int64_t>(m) * p.out_stride + r] =
          hn::GetLane(hn::SumOfLanes(d, total));
    }
  }
}

template <bool kRound, std::size_t kCount>
void DotChunksOf(const QuantizedChunks& in, const DotProduct& p) {
  const FloatTag d;
  for (std::int64_t r = 0; r < in.rows; ++r) {
    const std::uint8_t* packed = in.packed + r * in.row_bytes;
    const auto* x = static_cast<const float*>(p.x);
    hn::Vec<FloatTag> sum[kCount][2];
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kCount; ++m) sum[m][0] = sum[m][1] = hn::Zero(d);
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk, packed += kChunk / 2) {
      const BlockTable<kRound> table(in.code, in.scales.At(r, chunk));
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kChunk / 2; i += kLanes) {
        hn::Vec<FloatTag> even;
        hn::Vec<FloatTag> odd;
        table.Decode(packed + i, even, odd);
#pragma GCC unroll 8
        for (std::size_t m = 0; m < kCount; ++m) {
          const float* from = x + m * kChunk + i;
          sum[m][0] = hn::MulAdd(even, hn::LoadU(d, from), sum[m][0]);
          sum[m][1] = hn::MulAdd(odd, hn::LoadU(d, from + kChunk / 2), sum[m][1]);
        }
      }
      x += kCount * kChunk;
    }
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kCount; ++m) {
      p.out[static_cast<std::int64_t>(m) * p.out_stride + r] =
          hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[m][0], sum[m][1])));
    }
  }
}

template <int... kCounts>
constexpr auto DotRowsTable(std::integer_sequence<int, kCounts...>) {
  return std::array{DotRowsOf<kCounts + 1>...};
}
void DotRows(const void* rows, std::int64_t stride, const DotProduct& p) {
  static constexpr auto kDots = DotRowsTable(std::make_integer_sequence<int, kDotBatch>());
  kDots[static_cast<std::size_t>(p.count - 1)](rows, stride, p);
}

template <bool kRound, int... kCounts>
constexpr auto DotChunksTable(std::integer_sequence<int, kCounts...>) {
  return std::array{DotChunksOf<kRound, kCounts + 1>...};
}
template <bool kRound>
void DotChunks(const QuantizedChunks& in, const DotProduct& p) {
  static constexpr auto kDots =
      DotChunksTable<kRound>(std::make_integer_sequence<int, kDotBatch>());
  kDots[static_cast<std::size_t>(p.count - 1)](in, p);
}

template <bool kRound>
constexpr Kernels kTable = {
    .name = kName,
    .panel = kPanel,
    .vector = std::max<std::size_t>(kLanes, 4),
    .step = 1,
    .bytes = 4,
    .direct = kRound ? DType::kBool : DType::kF32,
    .most_dot_rows = kDotBatch,
    .multiply = Multiply,
    .pack_rows = PackRows<kRound>,
    .pack_rows_transposed = PackRowsTransposed<kRound>,
    .pack_panel_of_rows = PackPanelOfRows<kRound>,
    .pack_panel_of_columns = PackPanelOfColumns<kRound>,
    .decode_rows = DecodeRows<kRound>,
    .multiply_chunks = MultiplyChunks<kRound>,
    .multiply_decoded_panels = MultiplyDecodedPanels<kRound>,
    .pack_dot_rows = PackDot<kRound, false>,
    .dot_rows = DotRows,
    .pack_dot_chunks = PackDot<kRound, true>,
    .dot_chunks = DotChunks<kRound>,
};

}  // namespace

const Kernels* TableOfTarget(bool round) { return round ? &kTable<true> : &kTable<false>; }

void StoreTransposedTile(const float* tile, std::int64_t tile_stride, const float* bias, bool add,
                         const MatrixView& y) {
  constexpr std::size_t kMost = 64;  // columns of y at once
  const FloatTag d;
  HWY_ALIGN float block[kLanes * kMost];
  const auto stride = static_cast<std::size_t>(tile_stride);
  const auto rows = static_cast<std::size_t>(y.rows);
  const auto cols = static_cast<std::size_t>(y.cols);
  for (std::size_t first = 0; first < cols; first += kMost) {
    const std::size_t count = std::min(kMost, cols - first);
    for (std::size_t n = 0; n < rows; n += kLanes) {
      for (std::size_t o = 0; o < count; o += 4) {
        hn::Vec<FloatTag> v[4];
        for (std::size_t j = 0; j < 4; ++j) {
          v[j] = o + j < count ? hn::LoadU(d, tile + (first + o + j) * stride + n) : hn::Zero(d);
        }
        StoreColumns(v, block + o, kMost);
      }
      for (std::size_t j = 0; j < std::min(kLanes, rows - n); ++j) {
        const float* in = block + j * kMost;
        auto* out = const_cast<void*>(RowOf(y, n + j));
        ForEachVector(count, [&](auto tag, std::size_t o) HWY_ATTR {
          auto value = hn::LoadU(tag, in + o);
          if (bias != nullptr) value = hn::Add(value, hn::LoadU(tag, bias + first + o));
          if (add) value = hn::Add(value, LoadAs(tag, out, y.dtype, first + o));
          StoreAs(tag, value, out, y.dtype, first + o);
        });
      }
    }
  }
}

void StoreTileRows(const float* tile, std::int64_t tile_stride, bool add, const MatrixView& y) {
  for (std::size_t n = 0; n < static_cast<std::size_t>(y.rows); ++n) {
    const float* in = tile + n * static_cast<std::size_t>(tile_stride);
    auto* out = const_cast<void*>(RowOf(y, n));
    ForEachVector(static_cast<std::size_t>(y.cols), [&](auto d, std::size_t i) HWY_ATTR {
      auto value = hn::LoadU(d, in + i);
      if (add) value = hn::Add(value, LoadAs(d, out, y.dtype, i));
      StoreAs(d, value, out, y.dtype, i);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(TableOfTarget);
const Kernels& FloatKernels(bool round) { return *HWY_DYNAMIC_DISPATCH(TableOfTarget)(round); }

HWY_EXPORT(StoreTransposedTile);
void StoreTransposed(const float* tile, std::int64_t tile_stride, const float* bias, bool add,
                     const MatrixView& y) {
  HWY_DYNAMIC_DISPATCH(StoreTransposedTile)(tile, tile_stride, bias, add, y);
}

HWY_EXPORT(StoreTileRows);
void StoreTile(const float* tile, std::int64_t tile_stride, bool add, const MatrixView& y) {
  HWY_DYNAMIC_DISPATCH(StoreTileRows)(tile, tile_stride, add, y);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
