// Dot products in float32 lanes, for products of a few rows; contracts: Kernels in kernels.h.
// Included once per target by kernels_f32.cc.
#if defined(QLORA_BACKEND_CPU_KERNELS_F32_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_KERNELS_F32_DOT_INL_H_
#undef QLORA_BACKEND_CPU_KERNELS_F32_DOT_INL_H_
#else
#define QLORA_BACKEND_CPU_KERNELS_F32_DOT_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/f32_operands-inl.h"
#include "backend/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

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

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_KERNELS_F32_DOT_INL_H_
