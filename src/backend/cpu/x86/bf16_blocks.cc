// Products with ggml's blocks in pairs of bfloat16 (AVX512_BF16, see bf16_tile.cc): dot products
// with few rows of x, and blocks as operands of tiles.
#include <algorithm>

#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_block_values-inl.h"

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

// For up to kMostScaledSums rows of x: sums over the columns of one scale are scaled, not values.
constexpr int kMostScaledSums = 2;
template <BlockFormat kFormat, int kCount>
void DotScaledSums(const BlockView& blocks, const DotProduct& p) {
  using U = Unit<kFormat>;
  const auto ones = (__m512bh)_mm512_set1_epi16(UpperHalf(1));
  const auto row_bytes = static_cast<Index>(blocks.row_bytes());
  std::byte room[U::kBytes];
  for (Index r = 0; r < p.rows; ++r) {
    const std::byte* from = blocks.data + r * row_bytes;
    const std::byte* ahead = from + kAhead;
    const auto* x = static_cast<const std::uint16_t*>(p.x);
    // Halves of a group apart, and minima: a multiply-add waits for the one before.
    __m512 sum[kCount][2];
    __m512 less[kCount][2];
#pragma GCC unroll 2
    for (int m = 0; m < kCount; ++m) {
      sum[m][0] = sum[m][1] = less[m][0] = less[m][1] = _mm512_setzero_ps();
    }
    for (Index k = 0; k < p.k; k += U::kValues, from += U::kBytes) {
      FetchLines<U::kBytes>(ahead);
      BlockDecoder<kFormat> decoder;
      LoadUnit<kFormat>(from, p.k - k, room, decoder);
#pragma GCC unroll 4
      for (int g = 0; g < U::kGroups; ++g) {
        const auto [first, second] = decoder.Codes(g);
#pragma GCC unroll 2
        for (int m = 0; m < kCount; ++m, x += kGroup) {
#pragma GCC unroll 2
          for (int h = 0; h < 2; ++h) {
            const auto row = (__m512bh)_mm512_loadu_si512(x + 32 * h);
            const auto codes = (__m512bh)(h == 0 ? first : second);
            const __m512 products = _mm512_dpbf16_ps(_mm512_setzero_ps(), codes, row);
            sum[m][h] = _mm512_fmadd_ps(products, decoder.Scale(2 * g + h), sum[m][h]);
            if constexpr (U::Scales::kHasMins) {
              const __m512 total = _mm512_dpbf16_ps(_mm512_setzero_ps(), ones, row);
              less[m][h] = _mm512_fmadd_ps(total, decoder.Min(2 * g + h), less[m][h]);
            }
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int m = 0; m < kCount; ++m) {
      const __m512 total =
          _mm512_sub_ps(_mm512_add_ps(sum[m][0], sum[m][1]), _mm512_add_ps(less[m][0], less[m][1]));
      p.out[m * p.out_stride + r] = _mm512_reduce_add_ps(total);
    }
  }
}

// For more rows of x: kRows rows of the weight, from row r on, share the loaded values of x.
template <BlockFormat kFormat, int kCount, int kRows>
HWY_INLINE void DotValues(const BlockView& blocks, const DotProduct& p, Index r) {
  using U = Unit<kFormat>;
  const auto row_bytes = static_cast<Index>(blocks.row_bytes());
  const std::byte* from = blocks.data + r * row_bytes;
  const std::byte* ahead = from + std::max<Index>(kAhead, kRows * row_bytes);
  const auto* x = static_cast<const std::uint16_t*>(p.x);
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
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) values[i] = decoder[i].Values(g);
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m, x += kGroup) {
        const auto first = (__m512bh)_mm512_loadu_si512(x);
        const auto second = (__m512bh)_mm512_loadu_si512(x + 32);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          sum[i][m] = _mm512_dpbf16_ps(sum[i][m], (__m512bh)values[i].first, first);
          sum[i][m] = _mm512_dpbf16_ps(sum[i][m], (__m512bh)values[i].second, second);
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

template <BlockFormat kFormat, int kCount>
void DotBlocksWith(const BlockView& blocks, const DotProduct& p) {
  if constexpr (kCount <= kMostScaledSums) {
    DotScaledSums<kFormat, kCount>(blocks, p);
  } else {
    // As many as keep sums and values in registers.
    constexpr int kRows = 3;
    Index r = 0;
    for (; r + kRows <= p.rows; r += kRows) DotValues<kFormat, kCount, kRows>(blocks, p, r);
    for (; r < p.rows; ++r) DotValues<kFormat, kCount, 1>(blocks, p, r);
  }
}

template <BlockFormat kFormat>
void DotBlocks(const BlockView& blocks, const DotProduct& p) {
  static constexpr auto kTable =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotBlocksWith<kFormat, kCount>; });
  kTable[p.count - 1](blocks, p);
}

// Calls put(i, values) for the groups of columns [col, col + cols) of a row, where i counts from
// col.
template <BlockFormat kFormat, class Put>
HWY_INLINE void ForGroups(const std::byte* row, Index col, Index cols, const Put& put) {
  using U = Unit<kFormat>;
  std::byte room[U::kBytes];
  for (Index i = 0; i < cols;) {
    BlockDecoder<kFormat> decoder;
    LoadUnit<kFormat>(row + (col + i) / U::kValues * U::kBytes, cols - i, room, decoder);
    for (auto g = static_cast<int>((col + i) % U::kValues / kGroup); g < U::kGroups && i < cols;
         ++g, i += kGroup) {
      put(i, decoder.Values(g));
    }
  }
}

template <BlockFormat kFormat>
void DecodeBlockRows(const BlockView& blocks, Index col, Index cols, void* out, Index stride) {
  for (Index r = 0; r < blocks.rows; ++r) {
    auto* to = static_cast<std::uint16_t*>(out) + r * stride;
    ForGroups<kFormat>(
        blocks.Row(r), col,
        cols, [&](Index i, const GroupValues& values) __attribute__((always_inline)) {
          _mm512_storeu_si512(to + i, values.first);
          if (i + 32 < cols) _mm512_storeu_si512(to + i + 32, values.second);
        });
  }
}

// Word i of two vectors side by side, for 16 words from kFirst on.
struct alignas(64) SideBySide {
  std::uint16_t words[32] = {};

  constexpr explicit SideBySide(int first) {
    for (int i = 0; i < 16; ++i) {
      words[2 * i] = static_cast<std::uint16_t>(first + i);
      words[2 * i + 1] = static_cast<std::uint16_t>(32 + first + i);
    }
  }
};
constexpr SideBySide kLowWords(0);
constexpr SideBySide kHighWords(16);

// Groups of even rows wait in `even` for those of the rows that follow.
template <BlockFormat kFormat>
void DecodeBlockPanels(const BlockView& blocks, Index col, Index cols, void* panels) {
  constexpr Index kRowsAhead = 64;
  const __m512i low = _mm512_load_si512(kLowWords.words);
  const __m512i high = _mm512_load_si512(kHighWords.words);
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
      const auto [first, second] = even[i / kGroup];
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, low, odd.first));
      _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(first, high, odd.first));
      if (width < kGroup) return;
      _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi16(second, low, odd.second));
      _mm512_storeu_si512(to + 48, _mm512_permutex2var_epi16(second, high, odd.second));
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
