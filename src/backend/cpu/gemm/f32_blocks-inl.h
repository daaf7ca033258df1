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

#include "backend/cpu/gemm/block_scales.h"
#include "backend/cpu/gemm/f32_format-inl.h"
#include "backend/cpu/gemm/f32_tile-inl.h"
#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/int8/chunk_coder-inl.h"
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

HWY_INLINE hn::Vec<Bytes16> Load16(const std::byte* at) {
  return hn::LoadU(Bytes16(), reinterpret_cast<const std::uint8_t*>(at));
}

// low, high (16 each) = the bytes of a table at the low nibbles of 16 bytes, and of another one at
// the high ones.
HWY_INLINE void LookUp(hn::Vec<Bytes16> bytes, hn::Vec<Bytes16> low_table,
                       hn::Vec<Bytes16> high_table, std::uint8_t* low, std::uint8_t* high) {
  const Bytes16 d;
  const auto at_low = hn::And(bytes, hn::Set(d, 0x0f));
  hn::StoreU(hn::TableLookupBytes(low_table, at_low), d, low);
  hn::StoreU(hn::TableLookupBytes(high_table, hn::ShiftRight<4>(bytes)), d, high);
}

inline constexpr Codebook kPlainCodes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline constexpr Codebook kQ4Codes = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

// Of formats whose codes are nibbles: what each of them stands for.
template <BlockFormat kFormat>
constexpr const Codebook& BookOf() {
  if constexpr (kFormat == BlockFormat::kQ4_K) return kPlainCodes;
  if constexpr (kFormat == BlockFormat::kQ4_0) return kQ4Codes;
  if constexpr (kFormat == BlockFormat::kIQ4_NL) return kIq4Values;
  return kE2m1Values;
}
template <BlockFormat kFormat>
inline constexpr bool kHasNibbles = kFormat != BlockFormat::kQ8_0&& kFormat != BlockFormat::kQ6_K;

// out (64): looks up the nibbles of 64 columns, from column 64 * group of a block on. Tables of the
// first 32 columns, and of the others. Formats of 32 values in a block read two blocks.
template <BlockFormat kFormat>
HWY_INLINE void LookUpNibbles(const std::byte* block, int group, hn::Vec<Bytes16> first,
                              hn::Vec<Bytes16> second, std::uint8_t* out) {
  using Scales = BlockScales<kFormat>;
  if constexpr (kFormat == BlockFormat::kQ4_K) {
    const std::byte* from = block + Scales::kCodes + 32 * group;
    LookUp(Load16(from), first, second, out, out + 32);
    LookUp(Load16(from + 16), first, second, out + 16, out + 48);
  } else {
    LookUp(Load16(block + Scales::kCodes), first, first, out, out + 16);
    LookUp(Load16(block + Scales::kBytes + Scales::kCodes), second, second, out + 32, out + 48);
  }
}

// codes (64): the values of 64 columns before they are scaled, from column 64 * group of a block
// on. Formats of 32 values in a block read two blocks.
template <BlockFormat kFormat>
HWY_INLINE void UnpackCodes(const std::byte* block, int group, std::int8_t* codes) {
  using Scales = BlockScales<kFormat>;
  const Bytes16 d;
  if constexpr (kHasNibbles<kFormat>) {
    const auto* book = reinterpret_cast<const std::uint8_t*>(BookOf<kFormat>().data());
    const auto table = hn::LoadU(d, book);
    LookUpNibbles<kFormat>(block, group, table, table, reinterpret_cast<std::uint8_t*>(codes));
  } else if constexpr (kFormat == BlockFormat::kQ8_0) {
    for (int b = 0; b < 2; ++b) {
      const std::byte* from = block + b * Scales::kBytes + Scales::kCodes;
      for (int i = 0; i < 32; i += 16) {
        hn::Store(Load16(from + i), d, reinterpret_cast<std::uint8_t*>(codes + 32 * b + i));
      }
    }
  } else {
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

// Calls visit(unit, group, at) for each 64 of columns [col, col + cols) of a row, the last ones
// perhaps 32; `at` counts from col.
template <BlockFormat kFormat, class Visit>
HWY_INLINE void ForEachGroup(const std::byte* row, std::int64_t col, std::int64_t cols,
                             const Visit& visit) {
  using U = BlockUnit<kFormat>;
  for (std::int64_t at = 0; at < cols;) {
    const U unit(row + (col + at) / U::kValues * U::kBytes, cols - at);
    for (auto g = static_cast<int>((col + at) % U::kValues / kChunk); g < U::kGroups && at < cols;
         ++g, at += kChunk) {
      visit(unit, g, at);
    }
  }
}

// What kLanes codes are worth, of which the unit has the scale with number s.
template <class Unit>
HWY_INLINE hn::Vec<FloatTag> ValuesOf(const std::int8_t* codes, const Unit& unit, std::int64_t s) {
  const FloatTag d;
  const hn::Rebind<std::int32_t, FloatTag> d32;
  const hn::Rebind<std::int8_t, FloatTag> d8;
  const auto code = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes)));
  auto value = hn::Mul(code, hn::Set(d, unit.scales[s]));
  if constexpr (Unit::Scales::kHasMins) value = hn::Sub(value, hn::Set(d, unit.mins[s]));
  return value;
}

// Calls visit(i, values) for columns [col, col + cols) of a row, kLanes values at a time; i counts
// from col.
template <BlockFormat kFormat, class Visit>
HWY_INLINE void DecodeColumns(const std::byte* row, std::int64_t col, std::int64_t cols,
                              const Visit& visit) {
  ForEachGroup<kFormat>(row, col, cols, [&](const auto& unit, int g, std::int64_t at) HWY_ATTR {
    using U = BlockUnit<kFormat>;
    HWY_ALIGN std::int8_t codes[kChunk];
    UnpackCodes<kFormat>(unit.blocks, g, codes);
    for (std::int64_t i = 0; i < std::min(kChunk, cols - at); i += kLanes) {
      visit(at + i, ValuesOf(codes + i, unit, (g * kChunk + i) / U::Scales::kPerScale));
    }
  });
}

// Words whose lowest bytes are codes of 8 bits, as bytes.
template <class Words>
HWY_INLINE hn::Vec<Bytes16> LowestBytes(const Words* words) {
  if constexpr (kLanes == 16) {
    return hn::TruncateTo(Bytes16(), words[0]);
  } else if constexpr (kLanes == 8) {
    const hn::Repartition<std::uint16_t, FloatTag> d16;
    return hn::TruncateTo(
        Bytes16(), hn::ConcatEven(d16, hn::BitCast(d16, words[1]), hn::BitCast(d16, words[0])));
  } else {
    HWY_ALIGN std::uint8_t bytes[16];
    const hn::Rebind<std::uint8_t, FloatTag> part;
    for (std::int64_t i = 0; i < 16; i += kLanes) {
      hn::StoreU(hn::TruncateTo(part, words[i / kLanes]), part, bytes + i);
    }
    return hn::Load(Bytes16(), bytes);
  }
}

// Nibbles have 16 codes for each scale, which are looked up.
template <BlockFormat kFormat>
void CodeBlockRow(const BlockView& blocks, std::int64_t row, const BlockCoding& in,
                  std::uint8_t* out) {
  using U = BlockUnit<kFormat>;
  const FloatTag d;
  const auto inverse = hn::Set(d, in.inverse);
  const auto rounder = hn::Set(d, Rounder(in.offset));
  const auto words_of = [&](const std::int8_t* codes, const U& unit, std::int64_t s) HWY_ATTR {
    return Rounded<false>(d, ValuesOf(codes, unit, s), inverse, rounder);
  };
  ForEachGroup<kFormat>(
      blocks.Row(row), in.col, in.cols, [&](const U& unit, int g, std::int64_t at) HWY_ATTR {
        if constexpr (kHasNibbles<kFormat>) {
          const auto table = [&](int s) HWY_ATTR {
            hn::Vec<hn::RebindToUnsigned<FloatTag> > words[16 / kLanes];
            for (std::int64_t i = 0; i < 16; i += kLanes) {
              words[i / kLanes] = words_of(BookOf<kFormat>().data() + i, unit, s);
            }
            return LowestBytes(words);
          };
          LookUpNibbles<kFormat>(unit.blocks, g, table(2 * g), table(2 * g + 1), out + at);
        } else {
          HWY_ALIGN std::int8_t codes[kChunk];
          UnpackCodes<kFormat>(unit.blocks, g, codes);
          const hn::Rebind<std::uint8_t, FloatTag> part;
          for (std::int64_t i = 0; i < kChunk; i += kLanes) {
            const std::int64_t s = (g * kChunk + i) / U::Scales::kPerScale;
            hn::StoreU(hn::TruncateTo(part, words_of(codes + i, unit, s)), part, out + at + i);
          }
        }
      });
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
                                              .largest = LargestInRow<kFormat>,
                                              .code_row = CodeBlockRow<kFormat>};
    return &kKernels;
  });
}
#endif

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_GEMM_F32_BLOCKS_INL_H_
