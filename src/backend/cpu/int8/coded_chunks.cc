#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8/coded_chunks.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/cache_control.h>

#include <algorithm>

#include "backend/cpu/gemm/format.h"
#include "backend/cpu/int8/coded_chunks.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/int8/codes.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// Rows ahead of those that are coded, whose values are fetched: a processor does not foresee steps
// as wide as a row.
constexpr std::int64_t kRowsAhead = 16;

// A number that float32 holds to a unit: sums with it are rounded to whole numbers, the lowest byte
// of which is the code + offset.
HWY_INLINE float Rounder(std::uint8_t offset) { return 0x1.8p23f + static_cast<float>(offset); }

// The lowest bytes of value * factor, clamped, + rounder.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint8_t, D>> RoundedBytes(D d, hn::Vec<D> value,
                                                             hn::Vec<D> factor,
                                                             hn::Vec<D> rounder) {
  const hn::Rebind<std::uint32_t, D> d32;
  const auto most = hn::Set(d, int8::kLargestCode);
  const auto least = hn::Set(d, -int8::kLargestCode);
  const auto code = hn::Max(hn::Min(hn::Mul(value, factor), most), least);
  return hn::TruncateTo(hn::Rebind<std::uint8_t, D>(), hn::BitCast(d32, hn::Add(code, rounder)));
}

// Codes whole chunks with the codes of a table for each.
class Coder {
  using D = hn::CappedTag<float, 16>;
  using Bytes = hn::CappedTag<std::uint8_t, 16>;

 public:
  HWY_INLINE Coder(const float* code, std::uint8_t offset)
      : code_(code), rounder_(Rounder(offset)) {}

  HWY_INLINE void operator()(const std::uint8_t* packed, const float* factor,
                             std::uint8_t* out) const {
    const D d;
    const auto factors = hn::Set(d, *factor);
    const auto rounder = hn::Set(d, rounder_);
#if HWY_TARGET == HWY_SCALAR
    std::uint8_t table[16];
    for (std::int64_t i = 0; i < 16; ++i) {
      table[i] = hn::GetLane(RoundedBytes(d, hn::Set(d, code_[i]), factors, rounder));
    }
    for (std::int64_t i = 0; i < kChunkBytes; ++i) {
      out[2 * i] = table[packed[i] >> 4];
      out[2 * i + 1] = table[packed[i] & 15];
    }
#else
    const Bytes bytes;
    constexpr std::int64_t kFloats = hn::MaxLanes(D());
    HWY_ALIGN std::uint8_t table[16];
    for (std::int64_t i = 0; i < 16; i += kFloats) {
      const hn::Rebind<std::uint8_t, D> part;
      hn::StoreU(RoundedBytes(d, hn::LoadU(d, code_ + i), factors, rounder), part, table + i);
    }
    LookUp(packed, hn::Load(bytes, table), out);
#endif
  }

 private:
#if HWY_TARGET != HWY_SCALAR
  // The first of two values is in the upper half of its byte.
  HWY_INLINE static void LookUp(const std::uint8_t* packed, hn::Vec<Bytes> table,
                                std::uint8_t* out) {
    const hn::CappedTag<std::uint8_t, kChunk> d;
    const hn::RepartitionToWide<decltype(d)> d16;
    const hn::Rebind<std::uint8_t, decltype(d16)> half;
    constexpr std::int64_t kBytes = hn::MaxLanes(hn::CappedTag<std::uint8_t, kChunk>());
#if HWY_TARGET == HWY_AVX3
    const hn::Vec<decltype(d)> values{_mm512_broadcast_i32x4(table.raw)};
#elif HWY_TARGET == HWY_AVX2
    const hn::Vec<decltype(d)> values{_mm256_broadcastsi128_si256(table.raw)};
#else
    const auto values = table;
#endif
    for (std::int64_t i = 0; i < kChunk; i += kBytes) {
      const auto words = hn::PromoteTo(d16, hn::LoadU(half, packed + i / 2));
      const auto second = hn::And(hn::ShiftLeft<8>(words), hn::Set(d16, 0x0f00));
      const auto codes = hn::BitCast(d, hn::Or(hn::ShiftRight<4>(words), second));
      hn::StoreU(hn::TableLookupBytes(values, codes), d, out + i);
    }
  }
#endif

  const float* code_;
  float rounder_;
};

// The number of a byte in a block of 16 x 16, row and column, has 8 bits. Laying the halves of the
// block side by side moves them on by one; after four times, row and column have changed places.
HWY_INLINE void TransposeBlock(const std::uint8_t* in, std::uint8_t* out) {
  constexpr std::int64_t kSize = kTransposedRows;
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t r = 0; r < kSize; ++r) out[i * kInt8Stride + r] = in[r * kTransposedCols + i];
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
  for (std::int64_t i = 0; i < kSize; ++i) hn::StoreU(v[i], d, out + i * kInt8Stride);
#endif
}

}  // namespace

void Transpose(const std::uint8_t* in, std::int64_t cols, std::uint8_t* out) {
  for (std::int64_t i = 0; i < cols; i += kTransposedRows) {
    TransposeBlock(in + i, out + i * kInt8Stride);
  }
}

void CodeRows(const ChunkRows& in, std::uint8_t* out) {
  const Coder code(in.code, in.offset);
  for (std::int64_t r = 0; r < in.rows; ++r, out += kInt8Stride) {
    const std::uint8_t* packed = in.packed + r * in.row_bytes;
    const float* factors = in.factors + r * in.factor_stride;
    // Behind the last row come the next chunks of the first ones.
    const std::uint8_t* ahead = packed + kRowsAhead * in.row_bytes;
    if (r + kRowsAhead >= in.rows) ahead += in.chunks * kChunkBytes - in.rows * in.row_bytes;
    for (std::int64_t c = 0; c < in.chunks; ++c) {
      if (c % 2 == 0) hwy::Prefetch(ahead + c * kChunkBytes);
      code(packed + c * kChunkBytes, factors + c, out + c * kChunk);
    }
  }
}

void CodeColumns(const ChunkRows& in, std::uint8_t* out) {
  constexpr std::int64_t kAhead = 2 * kTransposedRows;
  const Coder code(in.code, in.offset);
  HWY_ALIGN std::uint8_t rows[kTransposedRows * kTransposedCols] = {};
  for (std::int64_t first = 0; first < in.rows; first += kTransposedRows) {
    const std::int64_t count = std::min(kTransposedRows, in.rows - first);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::uint8_t* packed = in.packed + (first + r) * in.row_bytes;
      hwy::Prefetch(packed + kAhead * in.row_bytes);
      const float* factors = in.factors + (first + r) * in.factor_stride;
      for (std::int64_t c = 0; c < in.chunks; ++c) {
        code(packed + c * kChunkBytes, factors + c, rows + r * kTransposedCols + c * kChunk);
      }
    }
    Transpose(rows, in.chunks * kChunk, out + first);
  }
}

void CodePlainValues(std::span<const float> values, float inverse, std::uint8_t offset,
                     std::uint8_t* out) {
  ForEachVector(std::ssize(values), [&](auto d, std::int64_t i) HWY_ATTR {
    const hn::Rebind<std::uint8_t, decltype(d)> d8;
    hn::StoreU(RoundedBytes(d, hn::LoadU(d, values.data() + i), hn::Set(d, inverse),
                            hn::Set(d, Rounder(offset))),
               d8, out + i);
  });
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(CodeRows);
void CodeChunks(const ChunkRows& in, std::uint8_t* out) { HWY_DYNAMIC_DISPATCH(CodeRows)(in, out); }

HWY_EXPORT(CodeColumns);
void CodeChunkColumns(const ChunkRows& in, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(CodeColumns)(in, out);
}

HWY_EXPORT(Transpose);
void TransposeCodes(const std::uint8_t* in, std::int64_t cols, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Transpose)(in, cols, out);
}

HWY_EXPORT(CodePlainValues);
void CodeValues(std::span<const float> values, float inverse, std::uint8_t offset,
                std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(CodePlainValues)(values, inverse, offset, out);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
