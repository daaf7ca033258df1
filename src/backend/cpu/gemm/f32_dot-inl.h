// Dot products in float32 lanes, for products of a few rows; contracts: Kernels in kernels.h.
// Included once per target by kernels.cc.
#if defined(QLORA_BACKEND_CPU_GEMM_F32_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_GEMM_F32_DOT_INL_H_
#undef QLORA_BACKEND_CPU_GEMM_F32_DOT_INL_H_
#else
#define QLORA_BACKEND_CPU_GEMM_F32_DOT_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>

#include "backend/cpu/gemm/f32_format-inl.h"
#include "backend/cpu/gemm/f32_pack-inl.h"
#include "backend/cpu/gemm/kernels.h"
#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// Independent sums of a dot product: a multiply-add takes about four cycles, two start in each.
constexpr int SumsFor(int count) { return count <= 2 ? 4 : 2; }
constexpr int kRowSums = 2;  // row by row, for any number of rows

// How far ahead of its use the weight is fetched, in bytes.
constexpr std::int64_t kAhead = 2048;

// Columns [k, k + kWidth) of a row, zeros beyond the last one.
template <bool kRound, std::int64_t kWidth>
void LoadColumns(const ConstMatrixView& in, std::int64_t row, std::int64_t k, float* out) {
  const void* from = RowOf(in, row);
  ForEachVector(std::min(kWidth, in.cols - k), [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(LoadOperand<kRound>(d, from, in.dtype, k + i), d, out + i);
  });
  for (std::int64_t i = in.cols - k; i < kWidth; ++i) out[i] = 0;
}

// Groups of kChunk columns; in each, the rows one after the other, padded with zeros.
template <bool kRound>
void PackDotRows(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<float*>(out);
  for (std::int64_t k = 0; k < in.cols; k += kChunk) {
    for (int m = 0; m < in.rows; ++m, to += kChunk) {
      LoadColumns<kRound, kChunk>(in, m, k, to);
    }
  }
}

template <DType kType, int kCount, int kParts>
void DotRowsOf(const ConstMatrixView& rows, const DotProduct& p) {
  const FloatTag d;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const auto* row = static_cast<const char*>(RowOf(rows, r));
    const auto* x = static_cast<const float*>(p.x);
    hn::Vec<FloatTag> sum[kCount][kParts];
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
      for (int s = 0; s < kParts; ++s) sum[m][s] = hn::Zero(d);
    }
    const auto add = [&](const void* weights, DType type, std::int64_t begin) HWY_ATTR {
      for (std::int64_t i = 0; i < kChunk; i += kParts * kLanes) {
#pragma GCC unroll 4
        for (int s = 0; s < kParts; ++s) {
          const auto weight = LoadAs(d, weights, type, begin + i + s * kLanes);
#pragma GCC unroll 8
          for (int m = 0; m < kCount; ++m) {
            const auto value = hn::LoadU(d, x + m * kChunk + i + s * kLanes);
            sum[m][s] = hn::MulAdd(weight, value, sum[m][s]);
          }
        }
      }
      x += kCount * kChunk;
    };
    constexpr std::int64_t kBytes = kType == DType::kF32 ? 4 : 2;
    std::int64_t k = 0;
    for (; k + kChunk <= p.k; k += kChunk) {
      for (std::int64_t byte = 0; byte < kChunk * kBytes; byte += kCacheLine) {
        hwy::Prefetch(row + k * kBytes + kAhead + byte);
      }
      add(row, kType, k);
    }
    if (k < p.k) {
      HWY_ALIGN float rest[kChunk];
      LoadColumns<false, kChunk>(rows, r, k, rest);
      add(rest, DType::kF32, 0);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      auto total = hn::Add(sum[m][0], sum[m][1]);
      if constexpr (kParts == 4) total = hn::Add(total, hn::Add(sum[m][2], sum[m][3]));
      p.out[m * p.out_stride + r] = hn::GetLane(hn::SumOfLanes(d, total));
    }
  }
}

// Groups of kVectorColumns columns; in each, the rows one after the other, padded with zeros, their
// columns in the order in which they are decoded.
template <bool kRound>
void PackDotChunks(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<float*>(out);
  for (std::int64_t k = 0; k < in.cols; k += kVectorColumns) {
    for (int m = 0; m < in.rows; ++m, to += kVectorColumns) {
      HWY_ALIGN float values[kVectorColumns];
      LoadColumns<kRound, kVectorColumns>(in, m, k, values);
      for (std::int64_t i = 0; i < kVectorColumns; ++i) {
        to[i] = values[WordDecoder::ColumnOf(i / kLanes, i % kLanes)];
      }
    }
  }
}

// Values of x that are multiplied with several rows of the weight: 24 KiB of a first-level cache of
// 32 or more.
constexpr std::int64_t kBlockValues = 6144;
template <int kCount>
inline constexpr std::int64_t kBlockVectors = kBlockValues / (kCount * kVectorColumns);
static_assert(kBlockVectors<kDotBatch> > 0 && kDotGroup % kVectorColumns == 0);

// total[m] += x(m) . row r of the weight, over vectors [begin, end) of words.
template <int kCount>
HWY_INLINE void DotVectors(const QuantizedChunks& in, const WordDecoder& decoder, const float* x,
                           std::int64_t r, std::int64_t begin, std::int64_t end, std::int64_t ahead,
                           hn::Vec<FloatTag> (&total)[kCount]) {
  const FloatTag d;
  constexpr std::int64_t kChunkWords = kChunk / kWordNibbles;
  const std::int64_t word_count = in.chunks * kChunkWords;
  constexpr std::int64_t kVectorBytes = kLanes * sizeof(std::uint32_t);
  const std::uint8_t* packed = in.packed + r * in.row_bytes + begin * kVectorBytes;
  x += begin * kCount * kVectorColumns;
  for (std::int64_t v = begin; v < end; ++v) {
    const std::int64_t chunk = v * kLanes / kChunkWords;
    auto scale = hn::Set(d, in.scales.At(r, chunk));
    if (kLanes > kChunkWords && chunk + 1 < in.chunks) {
      scale =
          hn::IfThenElse(hn::FirstN(d, kChunkWords), scale, hn::Set(d, in.scales.At(r, chunk + 1)));
    }
    const auto words = LoadWords(packed, word_count - v * kLanes);
    hwy::Prefetch(packed + ahead);
    packed += kVectorBytes;
    hn::Vec<FloatTag> sum[kCount];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      hn::Vec<FloatTag> weights[kHalfVectors];
      decoder.Decode(words, half, weights);
      const float* values = x + half * kHalfVectors * kLanes;
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
        for (std::int64_t i = 0; i < kHalfVectors; ++i) {
          const auto value = hn::LoadU(d, values + m * kVectorColumns + i * kLanes);
          sum[m] =
              half + i == 0 ? hn::Mul(weights[i], value) : hn::MulAdd(weights[i], value, sum[m]);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) total[m] = hn::MulAdd(sum[m], scale, total[m]);
    x += kCount * kVectorColumns;
  }
}

template <int kCount>
void DotChunksOf(const QuantizedChunks& in, const DotProduct& p) {
  QLORA_DCHECK(in.rows <= kDotWeightRows && in.chunks * kChunk == p.k);
  const FloatTag d;
  const WordDecoder decoder(in.code);
  const auto* x = static_cast<const float*>(p.x);
  const std::int64_t vectors = (in.chunks * kChunk + kVectorColumns - 1) / kVectorColumns;
  const bool whole_rows = vectors <= kBlockVectors<kCount>;
  // The distance to prefetch: a few cache lines ahead, or the same columns of the next row.
  const std::int64_t ahead = whole_rows ? std::int64_t{kAhead} : in.row_bytes;
  HWY_ALIGN float totals[kDotWeightRows * kCount * kLanes];
  for (std::int64_t begin = 0; begin < vectors; begin += kBlockVectors<kCount>) {
    const std::int64_t end = std::min(vectors, begin + kBlockVectors<kCount>);
    for (std::int64_t r = 0; r < in.rows; ++r) {
      float* at = totals + r * kCount * kLanes;
      hn::Vec<FloatTag> total[kCount];
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) {
        total[m] = begin == 0 ? hn::Zero(d) : hn::Load(d, at + m * kLanes);
      }
      DotVectors<kCount>(in, decoder, x, r, begin, end, ahead, total);
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) hn::Store(total[m], d, at + m * kLanes);
    }
  }
  for (std::int64_t r = 0; r < in.rows; ++r) {
    for (int m = 0; m < kCount; ++m) {
      const auto total = hn::Load(d, totals + (r * kCount + m) * kLanes);
      p.out[m * p.out_stride + r] = hn::GetLane(hn::SumOfLanes(d, total));
    }
  }
}

template <DType kType>
void DotRowsAs(const ConstMatrixView& rows, const DotProduct& p) {
  static constexpr auto kFastest =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotRowsOf<kType, kCount, SumsFor(kCount)>; });
  static constexpr auto kRowByRow =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotRowsOf<kType, kCount, kRowSums>; });
  (p.row_by_row ? kRowByRow : kFastest)[p.count - 1](rows, p);
}

void DotRows(const ConstMatrixView& rows, const DotProduct& p) {
  QLORA_DCHECK(rows.dtype == DType::kF32 || rows.dtype == DType::kBF16);
  if (rows.dtype == DType::kF32) return DotRowsAs<DType::kF32>(rows, p);
  DotRowsAs<DType::kBF16>(rows, p);
}

void DotChunks(const QuantizedChunks& in, const DotProduct& p) {
  static constexpr auto kDots =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotChunksOf<kCount>; });
  kDots[p.count - 1](in, p);
}

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_GEMM_F32_DOT_INL_H_
