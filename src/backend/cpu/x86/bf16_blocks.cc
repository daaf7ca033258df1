// Products with ggml's blocks in pairs of bfloat16 (AVX512_BF16, see bf16_tile.cc): dot products
// with few rows of x, and blocks as operands of tiles.
#include <algorithm>

#include "backend/cpu/views.h"
#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_block_values-inl.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {
namespace {

constexpr Index kGroup = 64;  // columns

// A block of 256 values, or two of 32.
template <BlockFormat kFormat>
struct Unit {
  using Scales = BlockScales<kFormat>;
  static constexpr Index kValues = std::max<Index>(kGroup, Scales::kValues);
  static constexpr Index kBlocks = kValues / Scales::kValues;
  static constexpr Index kBytes = kBlocks * Scales::kBytes;
  static constexpr int kGroups = kValues / kGroup;
};

// The sums that are behind packed rows of x.
HWY_INLINE const float* SumsOfX(const std::uint16_t* x, Index count, Index k) {
  return reinterpret_cast<const float*>(x + count * RoundUp(k, kGroup));
}

// Loads the unit at `from`. Of the last one of a row, the second block may be missing, in place of
// which come zeros.
template <BlockFormat kFormat>
HWY_INLINE void LoadUnit(const std::byte* from, Index columns, std::byte* room,
                         BlockDecoder<kFormat>& decoder) {
  if (Unit<kFormat>::kBlocks > 1 && columns < kGroup) {
    std::fill_n(std::copy_n(from, Unit<kFormat>::kBytes / 2, room), Unit<kFormat>::kBytes / 2,
                std::byte{0});
    from = room;
  }
  decoder.Load(from);
}

// Fetches lines of rows in the order of memory, which is fastest in one long stream.
template <Index kBytes>
HWY_INLINE void FetchLines(const std::byte*& ahead) {
  for (Index line = 0; line < kBytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
  ahead += kBytes;
}
constexpr Index kAhead = 8192;  // bytes, at least

// kRows rows of the weight, from row r on, share the loaded values of x. Sums over the columns of
// one scale are scaled, not values unless kScale, and minima meet sums of x.
template <BlockFormat kFormat, int kCount, int kRows, bool kScale>
HWY_INLINE void DotRowsOfBlocks(const BlockView& blocks, const DotProduct& p, Index r) {
  using U = Unit<kFormat>;
  const auto row_bytes = static_cast<Index>(blocks.row_bytes());
  const std::byte* from = blocks.data + r * row_bytes;
  const std::byte* ahead = from + std::max<Index>(kAhead, kRows * row_bytes);
  const auto* x = static_cast<const std::uint16_t*>(p.x);
  const float* sums_of_x = SumsOfX(x, p.count, p.k);
  __m512 sum[kRows][kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) sum[i][m] = _mm512_setzero_ps();
  }
  BlockDecoder<kFormat> decoder[kRows];
  std::byte room[kRows][U::kBytes];
  for (Index k = 0; k < p.k; k += U::kValues, from += U::kBytes) {
    FetchLines<kRows * U::kBytes>(ahead);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      LoadUnit<kFormat>(from + i * row_bytes, p.k - k, room[i], decoder[i]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < U::kGroups; ++g) {
      GroupValues values[kRows];
      __m512 scales[kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        values[i] = kScale ? decoder[i].Values(g) : decoder[i].Codes(g);
        scales[i] = decoder[i].Scales(g);
      }
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m, x += kGroup) {
        const auto [first, second] = BlockDecoder<kFormat>::OrderOf(
            {_mm512_loadu_si512(x), _mm512_loadu_si512(x + kGroup / 2)});
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          __m512 part = kScale ? sum[i][m] : _mm512_setzero_ps();
          part = _mm512_dpbf16_ps(part, (__m512bh)values[i].first, (__m512bh)first);
          part = _mm512_dpbf16_ps(part, (__m512bh)values[i].second, (__m512bh)second);
          sum[i][m] = kScale ? part : _mm512_fmadd_ps(part, scales[i], sum[i][m]);
        }
      }
    }
    if constexpr (U::Scales::kHasMins) {
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m, sums_of_x += 16) {
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          sum[i][m] = _mm512_fnmadd_ps(_mm512_loadu_ps(sums_of_x), decoder[i].Mins(), sum[i][m]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      p.out[m * p.out_stride + r + i] = _mm512_reduce_add_ps(sum[i][m]);
    }
  }
}

template <BlockFormat kFormat, int kCount, bool kScale>
void DotBlocksWith(const BlockView& blocks, const DotProduct& p) {
  constexpr int kRows = kTakesRegisters<kFormat> && kCount > 2 ? 2 : 4;
  static_assert(kDotWeightRows % kRows == 0);
  Index r = 0;
  for (; r + kRows <= p.rows; r += kRows) {
    DotRowsOfBlocks<kFormat, kCount, kRows, kScale>(blocks, p, r);
  }
  for (; r < p.rows; ++r) DotRowsOfBlocks<kFormat, kCount, 1, kScale>(blocks, p, r);
}

template <BlockFormat kFormat>
void DotBlocks(const BlockView& blocks, const DotProduct& p) {
  static constexpr auto kFastest = KernelsFor<kDotBatch>([]<int kCount>() {
    return DotBlocksWith<kFormat, kCount, (kScalesCodes<kFormat> && kCount > 2)>;
  });
  // The order that is fastest for one row.
  static constexpr auto kRowByRow =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotBlocksWith<kFormat, kCount, false>; });
  (p.row_by_row ? kRowByRow : kFastest)[p.count - 1](blocks, p);
}

// Calls put(i, values), with the values in the order of columns, for the groups of columns [col,
// col + cols) of a row, where i counts from col.
template <BlockFormat kFormat, class Put>
HWY_INLINE void ForGroups(const std::byte* row, Index col, Index cols, const Put& put) {
  using U = Unit<kFormat>;
  std::byte room[U::kBytes];
  for (Index i = 0; i < cols;) {
    BlockDecoder<kFormat> decoder;
    LoadUnit<kFormat>(row + (col + i) / U::kValues * U::kBytes, cols - i, room, decoder);
    for (auto g = static_cast<int>((col + i) % U::kValues / kGroup); g < U::kGroups && i < cols;
         ++g, i += kGroup) {
      put(i, decoder.InOrder(decoder.Values(g)));
    }
  }
}

template <BlockFormat kFormat>
void DecodeBlockRows(const BlockView& blocks, Index col, Index cols, void* out, Index stride) {
  using U = Unit<kFormat>;
  for (Index r = 0; r < blocks.rows; ++r) {
    auto* to = static_cast<std::uint16_t*>(out) + r * stride;
    // The columns that are decoded next, of these rows: rows are too far apart for the processor to
    // foresee them.
    const std::byte* next = blocks.Row(r) + (col + cols) / U::kValues * U::kBytes;
    for (Index byte = 0; byte < cols / U::kValues * U::kBytes; byte += 64) {
      _mm_prefetch(next + byte, _MM_HINT_T1);
    }
    ForGroups<kFormat>(
        blocks.Row(r), col,
        cols, [&](Index i, const GroupValues& values) __attribute__((always_inline)) {
          _mm512_storeu_si512(to + i, values.first);
          if (i + 32 < cols) _mm512_storeu_si512(to + i + 32, values.second);
        });
  }
}

// Groups of even rows wait in `even` for those of the rows that follow.
template <BlockFormat kFormat>
void DecodeBlockPanels(const BlockView& blocks, Index col, Index cols, void* panels) {
  constexpr Index kRowsAhead = 64;
  const Index pairs = (blocks.rows + 1) / 2;
  const auto row_bytes = static_cast<Index>(blocks.row_bytes());
  const Index fetched = cols / Unit<kFormat>::kValues * Unit<kFormat>::kBytes;
  for (Index pair = 0; pair < pairs; ++pair) {
    GroupValues even[2];
    const std::byte* row = blocks.Row(2 * pair);
    for (Index byte = 0; byte < fetched; byte += 64) {
      const std::byte* later = row + kRowsAhead * row_bytes + byte;
      _mm_prefetch(later, _MM_HINT_T1);
      _mm_prefetch(later + row_bytes, _MM_HINT_T1);
    }
    ForGroups<kFormat>(
        row, col, cols, [&](Index i, const GroupValues& values) __attribute__((always_inline)) {
          even[i / kGroup] = values;
        });
    const auto put = [&](Index i, const GroupValues& odd) __attribute__((always_inline)) {
      const Index width = std::min(kGroup, cols - i);
      auto* to = static_cast<std::uint32_t*>(panels) + i * pairs + pair * width;
      const GroupValues low = SideBySide(even[i / kGroup].first, odd.first);
      _mm512_storeu_si512(to, low.first);
      _mm512_storeu_si512(to + 16, low.second);
      if (width < kGroup) return;
      const GroupValues high = SideBySide(even[i / kGroup].second, odd.second);
      _mm512_storeu_si512(to + 32, high.first);
      _mm512_storeu_si512(to + 48, high.second);
    };
    if (2 * pair + 1 < blocks.rows) {
      ForGroups<kFormat>(row + row_bytes, col, cols, put);
    } else {
      const __m512i zero = _mm512_setzero_si512();
      for (Index i = 0; i < cols; i += kGroup) put(i, {zero, zero});
    }
  }
}

}  // namespace

// Groups of 64 columns; in each, the rows one after the other, padded with zeros: even columns,
// then odd ones. Then for every 256 columns of each row, eight zeros and the sums of 32 columns
// each, in float32.
void PackDotBlocks(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<std::uint16_t*>(out);
  for (Index k = 0; k < in.cols; k += kGroup) {
    for (Index m = 0; m < in.rows; ++m, to += kGroup) {
      const auto [even, odd] = Permuted({LoadBits32(in, m, k), LoadBits32(in, m, k + 32)}, kApart);
      _mm512_storeu_si512(to, even);
      _mm512_storeu_si512(to + 32, odd);
    }
  }
  const auto ones = (__m512bh)_mm512_set1_epi16(UpperHalf(1));
  auto* sums = reinterpret_cast<float*>(to);
  for (Index k = 0; k + 256 <= in.cols; k += 256) {
    for (Index m = 0; m < in.rows; ++m) {
      sums = std::fill_n(sums, 8, 0.0f);
      for (Index i = k; i < k + 256; i += 32) {
        *sums++ = _mm512_reduce_add_ps(
            _mm512_dpbf16_ps(_mm512_setzero_ps(), ones, (__m512bh)LoadBits32(in, m, i)));
      }
    }
  }
}

const BlockKernels* KernelsOf(BlockFormat format) {
  return KernelForBlocks(format, []<BlockFormat kFormat>() -> const BlockKernels* {
    static constexpr BlockKernels kKernels = {.decode_rows = DecodeBlockRows<kFormat>,
                                              .decode_panels = DecodeBlockPanels<kFormat>,
                                              .dot = DotBlocks<kFormat>};
    return &kKernels;
  });
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
