#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8/coded_chunks.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/gemm/format.h"
#include "backend/cpu/int8/coded_chunks.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/int8/codes.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// The codes + 128 of the 16 values of a block.
HWY_INLINE void MakeTable(const float* code, float factor, std::uint8_t* table) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const hn::Rebind<std::uint8_t, decltype(d)> du8;
  const auto most = hn::Set(d, int8::kLargestCode);
  for (std::int64_t i = 0; i < 16; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto value = hn::Mul(hn::LoadU(d, code + i), hn::Set(d, factor));
    const auto clamped = hn::Max(hn::Min(value, most), hn::Neg(most));
    const auto bytes = hn::BitCast(du8, hn::DemoteTo(d8, hn::NearestInt(clamped)));
    hn::StoreU(hn::Xor(bytes, hn::Set(du8, kCodeOffset)), du8, table + i);
  }
}

// The first of two values is in the upper half of its byte.
HWY_INLINE void LookUp(const std::uint8_t* packed, const std::uint8_t* table, std::uint8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < kChunkBytes; ++i) {
    out[2 * i] = table[packed[i] >> 4];
    out[2 * i + 1] = table[packed[i] & 15];
  }
#else
  const hn::CappedTag<std::uint8_t, kChunk> d;
  const hn::RepartitionToWide<decltype(d)> d16;
  const hn::Rebind<std::uint8_t, decltype(d16)> half;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto values = hn::LoadDup128(d, table);
  for (std::int64_t i = 0; i < kChunk; i += lanes) {
    const auto words = hn::PromoteTo(d16, hn::LoadU(half, packed + i / 2));
    const auto second = hn::And(hn::ShiftLeft<8>(words), hn::Set(d16, 0x0f00));
    const auto codes = hn::BitCast(d, hn::Or(hn::ShiftRight<4>(words), second));
    hn::StoreU(hn::TableLookupBytes(values, codes), d, out + i);
  }
#endif
}

}  // namespace

void Transpose(const std::uint8_t* in, std::int64_t cols, std::uint8_t* out, std::int64_t stride) {
  constexpr std::int64_t kSize = kTransposedRows;
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < cols; ++i) {
    for (std::int64_t r = 0; r < kSize; ++r) out[i * stride + r] = in[r * kChunk + i];
  }
#else
  // The number of a byte in the block, row and column, has 8 bits. Laying the halves of the block
  // side by side moves them on by one; after four times, row and column have changed places.
  const hn::FixedTag<std::uint8_t, kSize> d;
  for (std::int64_t first = 0; first < cols; first += kSize) {
    hn::Vec<decltype(d)> v[kSize];
    hn::Vec<decltype(d)> next[kSize];
    for (std::int64_t r = 0; r < kSize; ++r) v[r] = hn::LoadU(d, in + r * kChunk + first);
    for (int turn = 0; turn < 4; ++turn) {
      for (std::int64_t r = 0; r < kSize / 2; ++r) {
        next[2 * r] = hn::InterleaveLower(d, v[r], v[r + kSize / 2]);
        next[2 * r + 1] = hn::InterleaveUpper(d, v[r], v[r + kSize / 2]);
      }
      std::copy(next, next + kSize, v);
    }
    for (std::int64_t i = 0; i < kSize; ++i) hn::StoreU(v[i], d, out + (first + i) * stride);
  }
#endif
}

void CodeRun(const ChunkRun& run, std::uint8_t* out) {
  HWY_ALIGN std::uint8_t table[16];
  std::int64_t of_table = -1;
  for (std::int64_t c = 0; c < run.chunks; ++c) {
    const std::int64_t chunk = run.chunk + c;
    const std::int64_t block = run.per_block == 1 ? chunk : chunk / run.per_block;
    if (block != of_table) MakeTable(run.code, run.scales[block] * run.inverse, table);
    of_table = block;
    LookUp(run.packed + c * kChunkBytes, table, out + c * kChunk);
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Transpose);
void TransposeCodes(const std::uint8_t* in, std::int64_t cols, std::uint8_t* out,
                    std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(Transpose)(in, cols, out, stride);
}

HWY_EXPORT(CodeRun);
void CodeChunks(const ChunkRun& run, std::uint8_t* out) { HWY_DYNAMIC_DISPATCH(CodeRun)(run, out); }

}  // namespace qlora::cpu
#endif  // HWY_ONCE
