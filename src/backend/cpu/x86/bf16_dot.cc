// Dot products in pairs of bfloat16, for products of a few rows (AVX512_BF16, see bf16_tile.cc).
#include <algorithm>

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_format-inl.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {
namespace {

// The first `count` values at `from`, at most 32, and zeros. A masked load, because the row of a
// weight may be the last thing in a mapped file: reading past its end could fault.
HWY_INLINE __m512i LoadFirst(const std::uint16_t* from, Index count) {
  // The shift of a 32-bit one by 32 is undefined.
  const std::uint32_t mask = count >= 32 ? ~0u : count > 0 ? (1u << count) - 1 : 0;
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), from);
}

// The sums of kRows rows of a weight, from row r on, with kCount rows of x. kRows rows at a time
// share the loaded values of x.
template <int kRows, int kCount>
HWY_INLINE void ClearDots(__m512 (&sum)[kRows][kCount]) {
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) sum[i][m] = _mm512_setzero_ps();
  }
}
template <int kRows, int kCount>
HWY_INLINE void StoreDots(const __m512 (&sum)[kRows][kCount], const DotProduct& p, Index r) {
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      p.out[m * p.out_stride + r + i] = _mm512_reduce_add_ps(sum[i][m]);
    }
  }
}

constexpr Index kAhead = 2048;  // values to the prefetched ones, at least

// Each sum is two: one of the first 32 columns of every 64, one of the others. Both at once, one
// row of the weight after the other.
template <int kCount>
void DotPairedSums(const ConstMatrixView& rows, const DotProduct& p) {
  for (Index r = 0; r < p.rows; ++r) {
    const auto* row = static_cast<const std::uint16_t*>(rows.data) + r * rows.stride;
    const auto* x = static_cast<const std::uint16_t*>(p.x);
    __m512 sum[kCount][2];
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) sum[m][0] = sum[m][1] = _mm512_setzero_ps();
    const auto add = [&](__m512i low, __m512i high) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m, x += 64) {
        sum[m][0] = _mm512_dpbf16_ps(sum[m][0], (__m512bh)low, (__m512bh)_mm512_loadu_si512(x));
        sum[m][1] =
            _mm512_dpbf16_ps(sum[m][1], (__m512bh)high, (__m512bh)_mm512_loadu_si512(x + 32));
      }
    };
    Index k = 0;
    for (; k + 64 <= p.k; k += 64) {
      _mm_prefetch(row + k + kAhead, _MM_HINT_T0);
      _mm_prefetch(row + k + kAhead + 32, _MM_HINT_T0);
      add(_mm512_loadu_si512(row + k), _mm512_loadu_si512(row + k + 32));
    }
    if (k < p.k) add(LoadFirst(row + k, p.k - k), LoadFirst(row + k + 32, p.k - k - 32));
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      p.out[m * p.out_stride + r] = _mm512_reduce_add_ps(_mm512_add_ps(sum[m][0], sum[m][1]));
    }
  }
}

// For more rows of x: kRows rows of the weight, from row r on, share the loaded values of x. The
// sums of the first columns, then those of the others, so that all are in registers. Memory is
// fastest in one long stream: lines are prefetched in their order, whichever row they are of.
template <int kCount, int kRows>
HWY_INLINE void DotSplitSums(const ConstMatrixView& rows, const DotProduct& p, Index r) {
  const auto* row = static_cast<const std::uint16_t*>(rows.data) + r * rows.stride;
  const std::uint16_t* ahead = row + std::max<Index>(kAhead, kRows * rows.stride);
  alignas(64) float first[kRows][kCount][16];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const auto* x = static_cast<const std::uint16_t*>(p.x) + 32 * half;
    __m512 sum[kRows][kCount];
    ClearDots(sum);
    const auto add = [&](const __m512i(&weights)[kRows]) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m, x += 64) {
        const auto values = (__m512bh)_mm512_loadu_si512(x);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          sum[i][m] = _mm512_dpbf16_ps(sum[i][m], (__m512bh)weights[i], values);
        }
      }
    };
    __m512i weights[kRows];
    Index k = 32 * half;
    for (; k + 32 <= p.k; k += 64) {
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        ahead += 32;
        weights[i] = _mm512_loadu_si512(row + i * rows.stride + k);
      }
      add(weights);
    }
    if (k < p.k) {
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) weights[i] = LoadFirst(row + i * rows.stride + k, p.k - k);
      add(weights);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) {
        if (half == 0) {
          _mm512_store_ps(first[i][m], sum[i][m]);
        } else {
          sum[i][m] = _mm512_add_ps(_mm512_load_ps(first[i][m]), sum[i][m]);
        }
      }
    }
    if (half == 1) StoreDots(sum, p, r);
  }
}

template <int kCount>
void DotRowsOf(const ConstMatrixView& rows, const DotProduct& p) {
  if constexpr (kCount <= 4) return DotPairedSums<kCount>(rows, p);
  constexpr int kRows = 24 / kCount;  // that keep sums and values in registers
  Index r = 0;
  for (; r + kRows <= p.rows; r += kRows) DotSplitSums<kCount, kRows>(rows, p, r);
  for (; r < p.rows; ++r) DotSplitSums<kCount, 1>(rows, p, r);
}

// Prefetches the data that are read after kRows rows of a weight, from row r on: their scales, and
// lines of values in the order of memory, which is fastest in one long stream.
template <int kRows>
class Prefetch {
 public:
  HWY_INLINE Prefetch(const QuantizedChunks& in, Index r)
      : line_(in.packed + r * in.row_bytes + std::max(kLeastAhead, kRows * in.row_bytes)) {
    if (in.scales.codes == nullptr) return;
    const std::uint8_t* next = in.scales.codes + (r + kRows) * in.scales.stride;
    for (Index i = 0; i < kRows * in.scales.stride; i += kLine) {
      _mm_prefetch(next + i, _MM_HINT_T0);
    }
  }
  // As many lines as are read in the meantime.
  HWY_INLINE void Lines() {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i, line_ += kLine) {
      _mm_prefetch(line_, _MM_HINT_T1);
    }
  }

 private:
  static constexpr Index kLine = 64;
  static constexpr Index kLeastAhead = 16384;
  const std::uint8_t* line_;
};

// For up to kMostScaledSums rows of x, and row by row for any number: the sum over a chunk is
// scaled, not the sixteen values of its table, so that values are rounded to bfloat16 before they
// are scaled instead of afterwards: the same relative error.
//
//   two chunks of a row: | 8 lanes: chunk c | 8 lanes: chunk c + 1 |    part = sum of 4 products
//   scale:               | scale(c) x 8     | scale(c + 1) x 8     |    sum += part * scale
constexpr int kMostScaledSums = 2;
template <int kCount, int kRows>
HWY_INLINE void DotScaledSums(const QuantizedChunks& in, const DotProduct& p, Index r) {
  const auto code = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(in.code));
  const __m512i table = _mm512_broadcast_i64x4(code);  // twice: bit 4 of an index means nothing
  const std::uint8_t* packed = in.packed + r * in.row_bytes;
  const auto* x = static_cast<const std::uint16_t*>(p.x);
  __m512 sum[kRows][kCount];
  ClearDots(sum);
  Prefetch<kRows> prefetch(in, r);
  const auto add = [&](Index chunk, bool whole) __attribute__((always_inline)) {
    prefetch.Lines();
    __m512 scale[kRows];
    NibbleValues weights[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const __m512 first = _mm512_set1_ps(in.scales.At(r + i, chunk));
      const __m128 second = whole ? _mm_set_ss(in.scales.At(r + i, chunk + 1)) : _mm_setzero_ps();
      scale[i] = _mm512_mask_broadcastss_ps(first, 0xff00, second);
      weights[i] = LookUpNibbles(LoadChunks(packed + i * in.row_bytes, whole), table);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      __m512 part[kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) part[i] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        const auto values = (__m512bh)_mm512_loadu_si512(x + 128 * m + 32 * n);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          part[i] = _mm512_dpbf16_ps(part[i], weights[i].of[n], values);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        sum[i][m] = _mm512_fmadd_ps(part[i], scale[i], sum[i][m]);
      }
    }
    packed += kChunk;
    x += 128 * kCount;
  };
  Index chunk = 0;
  for (; chunk + 2 <= in.chunks; chunk += 2) add(chunk, true);
  if (chunk < in.chunks) add(chunk, false);
  StoreDots(sum, p, r);
}

// The scaled tables of two chunks of rows r ... from `chunk` on, or of one chunk and zeros.
template <int kRows>
HWY_INLINE void ScaleTables(const QuantizedChunks& in, __m512 code, Index r, Index chunk,
                            __m512i (&table)[kRows]) {
  const bool whole = chunk + 1 < in.chunks;
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    const auto scaled = [&](Index c) __attribute__((always_inline)) {
      return _mm512_mul_ps(code, _mm512_set1_ps(in.scales.At(r + i, c)));
    };
    const __m512 first = scaled(chunk);
    const __m512 second = whole ? scaled(chunk + 1) : _mm512_setzero_ps();
    table[i] = (__m512i)_mm512_cvtne2ps_pbh(second, first);
  }
}

// For more rows of x: the tables of two chunks are scaled, once for all rows.
template <int kCount, int kRows>
HWY_INLINE void DotScaledTables(const QuantizedChunks& in, const DotProduct& p, Index r) {
  const __m512 code = _mm512_loadu_ps(in.code);
  const __m512i nibble = _mm512_set1_epi16(0x0f0f);
  // Words of the second chunk look up the second half of the table.
  const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(0x1010), 1);
  const std::uint8_t* packed = in.packed + r * in.row_bytes;
  const auto* x = static_cast<const std::uint16_t*>(p.x);
  __m512 sum[kRows][kCount];
  ClearDots(sum);
  Prefetch<kRows> prefetch(in, r);
  __m512i table[kRows];
  ScaleTables(in, code, r, 0, table);
  for (Index chunk = 0; chunk < in.chunks; chunk += 2) {
    const bool whole = chunk + 1 < in.chunks;
    prefetch.Lines();
    __m512i values[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) values[i] = table[i];
    // A step early: the processor does not look far enough ahead to begin tables while it still
    // multiplies.
    if (chunk + 2 < in.chunks) ScaleTables(in, code, r, chunk + 2, table);
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
      __m512i index[kRows];  // nibbles n and n + 2 of every word, each in a byte
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const __m512i words = LoadChunks(packed + i * in.row_bytes, whole);
        // words & nibble | half
        index[i] = _mm512_ternarylogic_epi32(n == 0 ? words : _mm512_srli_epi16(words, 4), nibble,
                                             half, 0xea);
      }
#pragma GCC unroll 2
      for (int byte = 0; byte < 2; ++byte) {
        __m512bh weights[kRows];
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          weights[i] = (__m512bh)_mm512_permutexvar_epi16(
              byte == 0 ? index[i] : _mm512_srli_epi16(index[i], 8), values[i]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < kCount; ++m) {
          const auto row = (__m512bh)_mm512_loadu_si512(x + 128 * m + 32 * (n + 2 * byte));
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i) {
            sum[i][m] = _mm512_dpbf16_ps(sum[i][m], weights[i], row);
          }
        }
      }
    }
    packed += kChunk;
    x += 128 * kCount;
  }
  StoreDots(sum, p, r);
}

template <int kCount, int kRows, bool kTables>
HWY_INLINE void DotRowsOfChunks(const QuantizedChunks& in, const DotProduct& p, Index r) {
  if constexpr (kTables) {
    DotScaledTables<kCount, kRows>(in, p, r);
  } else {
    DotScaledSums<kCount, kRows>(in, p, r);
  }
}

template <int kCount, bool kTables>
void DotChunksOf(const QuantizedChunks& in, const DotProduct& p) {
  // As many as keep sums and values in registers; each divides kDotWeightRows.
  constexpr int kRows = kTables ? 3 : 2;
  static_assert(kDotWeightRows % kRows == 0);
  // Rows share the loaded values of x; but memory, the limit of one row of x, is fastest when short
  // rows are read one after the other.
  constexpr Index kShortBytes = 2048;
  const bool one_by_one = kCount == 1 && in.row_bytes < kShortBytes;
  Index r = 0;
  for (; !one_by_one && r + kRows <= in.rows; r += kRows) {
    DotRowsOfChunks<kCount, kRows, kTables>(in, p, r);
  }
  for (; r < in.rows; ++r) DotRowsOfChunks<kCount, 1, kTables>(in, p, r);
}

}  // namespace

// Groups of 64 columns; in each, the rows one after the other, padded with zeros.
void PackDotRows(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<std::uint16_t*>(out);
  for (Index k = 0; k < in.cols; k += 64) {
    for (Index m = 0; m < in.rows; ++m, to += 64) {
      _mm512_storeu_si512(to, LoadBits32(in, m, k));
      _mm512_storeu_si512(to + 32, LoadBits32(in, m, k + 32));
    }
  }
}

void DotRows(const ConstMatrixView& rows, const DotProduct& p) {
  static constexpr auto kTable =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotRowsOf<kCount>; });
  kTable[p.count - 1](rows, p);
}

// Groups of 128 columns; in each, the rows one after the other, padded with zeros, their columns in
// the order in which nibbles are looked up.
void PackDotChunks(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<std::uint16_t*>(out);
  for (Index k = 0; k < in.cols; k += 128) {
    for (Index m = 0; m < in.rows; ++m) {
      const __m512i v[4] = {LoadBits32(in, m, k), LoadBits32(in, m, k + 32),
                            LoadBits32(in, m, k + 64), LoadBits32(in, m, k + 96)};
      for (const std::uint16_t* columns : {kWordColumns.first, kWordColumns.second}) {
        const __m512i from = _mm512_load_si512(columns);
        const __m512i low = _mm512_permutex2var_epi16(v[0], from, v[1]);
        const __m512i high = _mm512_permutex2var_epi16(v[2], from, v[3]);
        _mm512_storeu_si512(to, _mm512_shuffle_i64x2(low, high, 0x44));
        _mm512_storeu_si512(to + 32, _mm512_shuffle_i64x2(low, high, 0xee));
        to += 64;
      }
    }
  }
}

void DotChunks(const QuantizedChunks& in, const DotProduct& p) {
  static constexpr auto kFastest = KernelsFor<kDotBatch>(
      []<int kCount>() { return DotChunksOf<kCount, (kCount > kMostScaledSums)>; });
  static constexpr auto kRowByRow =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotChunksOf<kCount, false>; });
  (p.row_by_row ? kRowByRow : kFastest)[p.count - 1](in, p);
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
