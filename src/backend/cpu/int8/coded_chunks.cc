#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8/coded_chunks.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/cache_control.h>

#include <algorithm>

#include "backend/cpu/int8/chunk_coder-inl.h"
#include "backend/cpu/int8/coded_chunks.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/views.h"
#include "backend/int8/codes.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// Rows ahead of those that are coded, whose values are fetched: a processor does not foresee steps
// as wide as a row.
constexpr std::int64_t kRowsAhead = 16;

// The number of a byte in a block of 16 x 16, row and column, has 8 bits. Laying the halves of the
// block side by side moves them on by one; after four times, row and column have changed places.
// stride: of the rows of `out`.
HWY_INLINE void TransposeBlock(const std::uint8_t* in, std::uint8_t* out, std::int64_t stride) {
  constexpr std::int64_t kSize = kTransposedRows;
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t r = 0; r < kSize; ++r) out[i * stride + r] = in[r * kTransposedCols + i];
  }
#else
  const hn::FixedTag<std::uint8_t, kSize> d;
  hn::Vec<decltype(d)> v[kSize];
  hn::Vec<decltype(d)> next[kSize];
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kSize; ++r) v[r] = hn::LoadU(d, in + r * kTransposedCols);
#pragma GCC unroll 4
  for (int turn = 0; turn < 4; ++turn) {
#pragma GCC unroll 8
    for (std::int64_t r = 0; r < kSize / 2; ++r) {
      next[2 * r] = hn::InterleaveLower(d, v[r], v[r + kSize / 2]);
      next[2 * r + 1] = hn::InterleaveUpper(d, v[r], v[r + kSize / 2]);
    }
#pragma GCC unroll 16
    for (std::int64_t r = 0; r < kSize; ++r) v[r] = next[r];
  }
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < kSize; ++i) hn::StoreU(v[i], d, out + i * stride);
#endif
}

// out(i, r) for each column i of four rows, in the order of columns. The even columns of a row are
// its first `half` codes, the odd ones follow.
HWY_INLINE void InterleaveQuads(const std::uint8_t* rows, std::int64_t half, std::uint8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < 2 * half; ++i) {
    for (std::int64_t r = 0; r < kInt8Step; ++r) {
      out[i * kInt8Step + r] = rows[r * kTransposedCols + i / 2 + i % 2 * half];
    }
  }
#else
  const hn::CappedTag<std::uint8_t, 2 * kChunkBytes> d;
  const hn::Repartition<std::uint16_t, decltype(d)> d16;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kBytes = hn::MaxLanes(d);
  // Quads of the codes of four rows from `i` on: in each block of 16 bytes, four blocks of 4 quads.
  const auto interleave = [&](std::int64_t i, V(&quads)[4]) HWY_ATTR {
    V row[kInt8Step];
    for (std::int64_t r = 0; r < kInt8Step; ++r) {
      row[r] = hn::LoadU(d, rows + r * kTransposedCols + i);
    }
    const auto low = hn::BitCast(d16, hn::InterleaveLower(d, row[0], row[1]));
    const auto high = hn::BitCast(d16, hn::InterleaveUpper(d, row[0], row[1]));
    const auto low2 = hn::BitCast(d16, hn::InterleaveLower(d, row[2], row[3]));
    const auto high2 = hn::BitCast(d16, hn::InterleaveUpper(d, row[2], row[3]));
    quads[0] = hn::BitCast(d, hn::InterleaveLower(d16, low, low2));
    quads[1] = hn::BitCast(d, hn::InterleaveUpper(d16, low, low2));
    quads[2] = hn::BitCast(d, hn::InterleaveLower(d16, high, high2));
    quads[3] = hn::BitCast(d, hn::InterleaveUpper(d16, high, high2));
  };
  for (std::int64_t i = 0; i < half; i += kBytes) {
    V even[4];
    V odd[4];
    interleave(i, even);
    interleave(half + i, odd);
    for (std::int64_t s = 0; s < 4; ++s) {
      const auto e = hn::BitCast(d32, even[s]);
      const auto o = hn::BitCast(d32, odd[s]);
      const auto low = hn::InterleaveLower(d32, e, o);
      const auto high = hn::InterleaveUpper(d32, e, o);
      auto* to = reinterpret_cast<std::uint32_t*>(out + 2 * i * kInt8Step) + 8 * s;
      if constexpr (kBytes == 16) {
        hn::StoreU(low, d32, to);
        hn::StoreU(high, d32, to + 4);
      } else {
        // Of 16 columns that follow one another, each vector has a block: they become neighbours.
        // The next two blocks are 32 columns away.
        const auto first = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(high), low);
        const auto second = hn::OddEvenBlocks(high, hn::SwapAdjacentBlocks(low));
        if constexpr (kBytes == 32) {
          hn::StoreU(first, d32, to);
          hn::StoreU(second, d32, to + 32);
        } else {
          const hn::Half<decltype(d32)> h;
          hn::StoreU(hn::LowerHalf(h, first), h, to);
          hn::StoreU(hn::LowerHalf(h, second), h, to + 32);
          hn::StoreU(hn::UpperHalf(h, first), h, to + 64);
          hn::StoreU(hn::UpperHalf(h, second), h, to + 96);
        }
      }
    }
  }
#endif
}

}  // namespace

void Transpose(const std::uint8_t* in, std::int64_t cols, std::uint8_t* out) {
  for (std::int64_t i = 0; i < cols; i += kTransposedRows) {
    TransposeBlock(in + i, out + i * kInt8Stride, kInt8Stride);
  }
}

template <bool kClamps>
void CodeRowsOf(const PackedChunks& in, std::uint8_t* out) {
  const Coder<kClamps> code(in.code, in.offset);
  for (std::int64_t r = 0; r < in.rows; ++r, out += kInt8Stride) {
    const std::uint8_t* packed = in.packed + r * in.row_bytes;
    const float* factors = in.factors + r * in.factor_stride;
    // Behind the last row come the next chunks of the first ones; behind a single one, the next
    // one.
    const std::uint8_t* ahead = packed + kRowsAhead * in.row_bytes;
    if (r + kRowsAhead >= in.rows) ahead += in.chunks * kChunkBytes - in.rows * in.row_bytes;
    for (std::int64_t c = 0; c < in.chunks; c += 2) {
      hwy::Prefetch(ahead + c * kChunkBytes);
      code(packed + c * kChunkBytes, factors + c, std::min<std::int64_t>(2, in.chunks - c),
           out + c * kChunk);
    }
  }
}

void CodeRows(const PackedChunks& in, std::uint8_t* out) {
  in.clamps ? CodeRowsOf<true>(in, out) : CodeRowsOf<false>(in, out);
}

void CodeColumns(const PackedChunks& in, std::uint8_t* out) {
  constexpr std::int64_t kAhead = 2 * kTransposedRows;
  const Coder<true> code(in.code, in.offset);
  const std::int64_t half = in.chunks * kChunkBytes;
  HWY_ALIGN std::uint8_t rows[kTransposedRows * kTransposedCols] = {};
  for (std::int64_t first = 0; first < in.rows; first += kTransposedRows) {
    const std::int64_t count = std::min(kTransposedRows, in.rows - first);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::uint8_t* packed = in.packed + (first + r) * in.row_bytes;
      hwy::Prefetch(packed + kAhead * in.row_bytes);
      code(packed, in.factors + (first + r) * in.factor_stride, in.chunks,
           rows + r * kTransposedCols);
    }
    // Even columns are in the first half of a row.
    for (std::int64_t i = 0; i < half; i += kTransposedRows) {
      std::uint8_t* to = out + first + 2 * i * kInt8Stride;
      TransposeBlock(rows + i, to, 2 * kInt8Stride);
      TransposeBlock(rows + half + i, to + kInt8Stride, 2 * kInt8Stride);
    }
  }
}

void CodeQuads(const PackedChunks& in, std::uint8_t* out) {
  const Coder<true> code(in.code, in.offset);
  HWY_ALIGN std::uint8_t rows[kInt8Step * kTransposedCols] = {};
  for (std::int64_t first = 0; first < in.rows; first += kInt8Step, out += kInt8Stride) {
    const std::int64_t count = std::min(kInt8Step, in.rows - first);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::uint8_t* packed = in.packed + (first + r) * in.row_bytes;
      hwy::Prefetch(packed + kRowsAhead * in.row_bytes);
      code(packed, in.factors + (first + r) * in.factor_stride, in.chunks,
           rows + r * kTransposedCols);
    }
    InterleaveQuads(rows, in.chunks * kChunkBytes, out);
  }
}

void CodePlainValues(std::span<const float> values, float inverse, std::uint8_t offset,
                     std::uint8_t* out) {
  ForEachVector(std::ssize(values), [&](auto d, std::int64_t i) HWY_ATTR {
    const hn::Rebind<std::uint8_t, decltype(d)> d8;
    hn::StoreU(RoundedBytes<true>(d, hn::LoadU(d, values.data() + i), hn::Set(d, inverse),
                                  hn::Set(d, Rounder(offset))),
               d8, out + i);
  });
}

void Pair(const std::uint8_t* in, std::int64_t count, std::uint8_t* out) {
  const std::int64_t half = RoundUp(count, kInt8Depth) / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    out[i] = in[2 * i];
    out[half + i] = in[2 * i + 1];
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(CodeRows);
void CodeChunks(const PackedChunks& in, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(CodeRows)(in, out);
}

HWY_EXPORT(CodeColumns);
void CodeChunkColumns(const PackedChunks& in, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(CodeColumns)(in, out);
}

HWY_EXPORT(CodeQuads);
void CodeChunkQuads(const PackedChunks& in, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(CodeQuads)(in, out);
}

HWY_EXPORT(Transpose);
void TransposeCodes(const std::uint8_t* in, std::int64_t cols, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Transpose)(in, cols, out);
}

HWY_EXPORT(CodePlainValues);
void CodeFloats(std::span<const float> values, float inverse, std::uint8_t offset,
                std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(CodePlainValues)(values, inverse, offset, out);
}

HWY_EXPORT(Pair);
void PairCodes(const std::uint8_t* in, std::int64_t count, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Pair)(in, count, out);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
