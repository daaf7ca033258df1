// Products with ggml's blocks in float32 lanes; contract: BlockKernels in kernels.h. Codes become
// whole numbers of 8 bits, then float32; in dot products with few rows of x, sums over the values
// of one scale are scaled. Included once per target by kernels.cc.
#if defined(QLORA_BACKEND_CPU_GEMM_F32_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_GEMM_F32_BLOCKS_INL_H_
#undef QLORA_BACKEND_CPU_GEMM_F32_BLOCKS_INL_H_
#else
#define QLORA_BACKEND_CPU_GEMM_F32_BLOCKS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <bit>

#include "backend/cpu/gemm/block_scales.h"
#include "backend/cpu/gemm/f32_format-inl.h"
#include "backend/cpu/gemm/f32_tile-inl.h"
#include "backend/cpu/gemm/kernels.h"
#include "ggml/codebooks.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR
// Scalar machines decode rows first.
template <bool kRound>
const BlockKernels* KernelsOf(BlockFormat) {
  return nullptr;
}
#else

using Bytes16 = hn::FixedTag<std::uint8_t, 16>;

// codes (16 each) = entries of a table at the low nibbles of 16 bytes, and at the high ones.
HWY_INLINE void LookUp(hn::Vec<Bytes16> bytes, const Codebook& book, std::int8_t* low,
                       std::int8_t* high) {
  const Bytes16 d;
  const hn::FixedTag<std::int8_t, 16> out;
  const auto table = hn::LoadU(out, book.data());
  const auto nibble = hn::Set(d, 0x0f);
  const auto at_low = hn::BitCast(out, hn::And(bytes, nibble));
  const auto at_high = hn::BitCast(out, hn::ShiftRight<4>(bytes));
  hn::Store(hn::TableLookupBytes(table, at_low), out, low);
  hn::Store(hn::TableLookupBytes(table, at_high), out, high);
}

HWY_INLINE hn::Vec<Bytes16> Load16(const std::byte* at) {
  return hn::LoadU(Bytes16(), reinterpret_cast<const std::uint8_t*>(at));
}

inline constexpr Codebook kPlainCodes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline constexpr Codebook kQ4Codes = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

// codes (64): the values of 64 columns before they are scaled, from column 64 * group of a block
// on. Formats of 32 values in a block read two blocks.
template <BlockFormat kFormat>
HWY_INLINE void UnpackCodes(const std::byte* block, int group, std::int8_t* codes) {
  using Scales = BlockScales<kFormat>;
  const Bytes16 d;
  if constexpr (kFormat == BlockFormat::kQ8_0) {
    for (int b = 0; b < 2; ++b) {
      const std::byte* from = block + b * Scales::kBytes + Scales::kCodes;
      for (int i = 0; i < 32; i += 16) {
        hn::Store(Load16(from + i), d, reinterpret_cast<std::uint8_t*>(codes + 32 * b + i));
      }
    }
  } else if constexpr (kFormat == BlockFormat::kQ4_K) {
    const std::byte* from = block + Scales::kCodes + 32 * group;
    LookUp(Load16(from), kPlainCodes, codes, codes + 32);
    LookUp(Load16(from + 16), kPlainCodes, codes + 16, codes + 48);
  } else if constexpr (kFormat == BlockFormat::kQ6_K) {
    // Of each half of 128 values: nibbles of 64 bytes, the low ones first; two bits of 32 bytes.
    const std::byte* nibbles = block + group / 2 * 64;
    const std::byte* bits = block + 128 + group / 2 * 32;
    const auto offset = hn::Set(d, 32);
    for (int i = 0; i < 64; i += 16) {
      auto code = Load16(nibbles + i);
      auto high = Load16(bits + i % 32);
      if (group % 2 != 0) {
        code = hn::ShiftRight<4>(code);
        high = hn::ShiftRight<4>(high);
      }
      if (i >= 32) high = hn::ShiftRight<2>(high);
      code = hn::Or(hn::And(code, hn::Set(d, 0x0f)),
                    hn::ShiftLeft<4>(hn::And(high, hn::Set(d, 0x03))));
      hn::Store(hn::Sub(code, offset), d, reinterpret_cast<std::uint8_t*>(codes + i));
    }
  } else {
    const Codebook& book = kFormat == BlockFormat::kQ4_0     ? kQ4Codes
                           : kFormat == BlockFormat::kIQ4_NL ? kIq4Values
                                                             : kE2m1Values;
    for (int b = 0; b < 2; ++b) {
      std::int8_t* to = codes + 32 * b;
      LookUp(Load16(block + b * Scales::kBytes + Scales::kCodes), book, to, to + 16);
    }
  }
}

// A block of 256 values or two of 32, with their scales.
template <BlockFormat kFormat>
struct BlockUnit {
  using Scales = BlockScales<kFormat>;
  static constexpr int kBlocks = Scales::kValues == 32 ? 2 : 1;
  static constexpr int kValues = kBlocks * Scales::kValues;
  static constexpr int kBytes = kBlocks * Scales::kBytes;
  static constexpr int kGroups = kValues / 64;

  // columns: from the start of the unit to the end of the row, which may have one of two blocks.
  // Zeros take the place of the other.
  HWY_INLINE BlockUnit(const std::byte* from, std::int64_t columns) : blocks(from) {
    if (columns < 64) {
      std::fill_n(std::copy_n(from, Scales::kBytes, pair), Scales::kBytes, std::byte{0});
      blocks = pair;
    }
    for (int b = 0; b < kBlocks; ++b) Scales::Load(blocks + b * Scales::kBytes, scales + b, mins);
  }

  const std::byte* blocks;
  float scales[16];
  float mins[16];
  std::byte pair[2 * Scales::kBytes];
};

template <BlockFormat kFormat, int kCount>
void DotBlocksWith(const BlockView& blocks, const DotProduct& p) {
  using U = BlockUnit<kFormat>;
  using Scales = BlockScales<kFormat>;
  constexpr int kScales = 64 / Scales::kPerScale;  // of a group
  constexpr std::int64_t kAhead = 2048;            // bytes
  const FloatTag d;
  const hn::Rebind<std::int32_t, FloatTag> d32;
  const hn::Rebind<std::int8_t, FloatTag> d8;
  const std::int64_t row_bytes = static_cast<std::int64_t>(blocks.row_bytes());
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const std::byte* block = blocks.data + r * row_bytes;
    const auto* x = static_cast<const float*>(p.x);
    hn::Vec<FloatTag> total[kCount];
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) total[m] = hn::Zero(d);
    for (std::int64_t k = 0; k < p.k; k += U::kValues, block += U::kBytes) {
      const U unit(block, p.k - k);
      for (int line = 0; line < U::kBytes; line += kCacheLine) {
        hwy::Prefetch(block + kAhead + line);
      }
      for (int g = 0; g < U::kGroups; ++g) {
        HWY_ALIGN std::int8_t codes[64];
        UnpackCodes<kFormat>(unit.blocks, g, codes);
#pragma GCC unroll 4
        for (int s = 0; s < kScales; ++s) {
          hn::Vec<FloatTag> sum[kCount];
          hn::Vec<FloatTag> ones[kCount];
#pragma GCC unroll 8
          for (int m = 0; m < kCount; ++m) sum[m] = ones[m] = hn::Zero(d);
          for (int i = s * Scales::kPerScale; i < (s + 1) * Scales::kPerScale; i += kLanes) {
            const auto code = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i)));
#pragma GCC unroll 8
            for (int m = 0; m < kCount; ++m) {
              const auto value = hn::LoadU(d, x + 64 * m + i);
              sum[m] = hn::MulAdd(code, value, sum[m]);
              if constexpr (Scales::kHasMins) ones[m] = hn::Add(ones[m], value);
            }
          }
          const auto scale = hn::Set(d, unit.scales[g * kScales + s]);
#pragma GCC unroll 8
          for (int m = 0; m < kCount; ++m) {
            total[m] = hn::MulAdd(sum[m], scale, total[m]);
            if constexpr (Scales::kHasMins) {
              const auto min = hn::Set(d, unit.mins[g * kScales + s]);
              total[m] = hn::NegMulAdd(ones[m], min, total[m]);
            }
          }
        }
        x += 64 * kCount;
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      p.out[m * p.out_stride + r] = hn::GetLane(hn::SumOfLanes(d, total[m]));
    }
  }
}

template <BlockFormat kFormat>
void DotBlocks(const BlockView& blocks, const DotProduct& p) {
  static constexpr auto kTable =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotBlocksWith<kFormat, kCount>; });
  kTable[p.count - 1](blocks, p);
}

// Calls visit(i, values) for columns [col, col + cols) of a row, kLanes values at a time; i counts
// from col.
template <BlockFormat kFormat, class Visit>
HWY_INLINE void DecodeColumns(const std::byte* row, std::int64_t col, std::int64_t cols,
                              const Visit& visit) {
  using U = BlockUnit<kFormat>;
  const FloatTag d;
  const hn::Rebind<std::int32_t, FloatTag> d32;
  const hn::Rebind<std::int8_t, FloatTag> d8;
  for (std::int64_t at = 0; at < cols;) {
    const U unit(row + (col + at) / U::kValues * U::kBytes, cols - at);
    for (auto g = static_cast<int>((col + at) % U::kValues / kChunk); g < U::kGroups && at < cols;
         ++g, at += kChunk) {
      HWY_ALIGN std::int8_t codes[kChunk];
      UnpackCodes<kFormat>(unit.blocks, g, codes);
      for (std::int64_t i = 0; i < std::min(kChunk, cols - at); i += kLanes) {
        const std::int64_t s = (g * kChunk + i) / U::Scales::kPerScale;
        const auto code = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i)));
        auto value = hn::Mul(code, hn::Set(d, unit.scales[s]));
        if constexpr (U::Scales::kHasMins) value = hn::Sub(value, hn::Set(d, unit.mins[s]));
        visit(at + i, value);
      }
    }
  }
}

template <BlockFormat kFormat, bool kRound>
void DecodeBlockRows(const BlockView& blocks, std::int64_t col, std::int64_t cols, void* out,
                     std::int64_t stride) {
  for (std::int64_t r = 0; r < blocks.rows; ++r) {
    auto* to = static_cast<float*>(out) + r * stride;
    const FloatTag d;
    DecodeColumns<kFormat>(blocks.Row(r), col, cols, [&](std::int64_t i, auto value) HWY_ATTR {
      hn::StoreU(Operand<kRound>(d, value), d, to + i);
    });
  }
}

template <BlockFormat kFormat, bool kRound>
void DecodeBlockPanels(const BlockView& blocks, std::int64_t col, std::int64_t cols, void* panels) {
  for (std::int64_t r = 0; r < blocks.rows; ++r) {
    const FloatTag d;
    DecodeColumns<kFormat>(blocks.Row(r), col, cols, [&](std::int64_t i, auto value) HWY_ATTR {
      const std::int64_t lane = i % kPanel;
      const std::int64_t width = std::min(kPanel, cols - (i - lane));
      auto* to = static_cast<float*>(panels) + (i - lane) * blocks.rows + r * width + lane;
      hn::StoreU(Operand<kRound>(d, value), d, to);
    });
  }
}

// As bits, which are in the order of magnitudes.
template <BlockFormat kFormat>
float LargestInRow(const BlockView& blocks, std::int64_t row) {
  constexpr std::int64_t kAhead = 4096;  // bytes
  const hn::RebindToSigned<FloatTag> d32;
  const std::byte* ahead = blocks.Row(row) + kAhead;
  const auto chunk = static_cast<std::int64_t>(blocks.row_bytes()) * kChunk / blocks.cols;
  auto largest = hn::Zero(d32);
  DecodeColumns<kFormat>(blocks.Row(row), 0, blocks.cols, [&](std::int64_t i, auto value) HWY_ATTR {
    if (i % kChunk == 0) hwy::Prefetch(ahead + i / kChunk * chunk);
    largest = hn::Max(largest, hn::BitCast(d32, hn::Abs(value)));
  });
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(d32, largest)));
}

template <bool kRound>
const BlockKernels* KernelsOf(BlockFormat format) {
  return KernelForBlocks(format, []<BlockFormat kFormat>() -> const BlockKernels* {
    static constexpr BlockKernels kKernels = {.decode_rows = DecodeBlockRows<kFormat, kRound>,
                                              .decode_panels = DecodeBlockPanels<kFormat, kRound>,
                                              .dot = DotBlocks<kFormat>,
                                              .largest = LargestInRow<kFormat>};
    return &kKernels;
  });
}
#endif

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_GEMM_F32_BLOCKS_INL_H_
