// Packing of operands as bfloat16 (AVX512_BF16, see bf16_tile.cc).
//
// VDPBF16PS multiplies pairs of bfloat16 and adds both products to a float32 lane. So two values of
// k are always side by side in a word of 32 bits, and an odd k is padded with a zero:
//
//   rows operand (rows, k)     row r:     | k 0 1 | k 2 3 | k 4 5 | ...        words of one row
//   panel (k / 2, width)       pair p:    | lane 0 | lane 1 | ... | lane width - 1 |
//                              word (p, lane) = x(2 p, lane) | x(2 p + 1, lane) << 16
#include <algorithm>

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {
namespace {

// Words of two rows: lane i has even[i] in its low half and odd[i] in its high half.
__m512i Pairs(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

// Fetches the row that is packed kAhead rows later: a processor does not foresee steps as wide as a
// row.
HWY_INLINE void PrefetchRow(const ConstMatrixView& in, Index row) {
  if (in.stride == in.cols) return;
  constexpr Index kAhead = 32;
  const auto bytes = static_cast<Index>(BytesOf(in.dtype, 1));
  const char* first = static_cast<const char*>(in.data) + (row + kAhead) * in.stride * bytes;
  for (Index i = 0; i < in.cols * bytes; i += 64) _mm_prefetch(first + i, _MM_HINT_T1);
}

}  // namespace

void PackRows(const ConstMatrixView& in, float scale, void* out, Index stride) {
  const Index k = (in.cols + 1) / 2 * 2;
  for (Index r = 0; r < in.rows; ++r) {
    auto* to = static_cast<std::uint16_t*>(out) + r * stride;
    for (Index i = 0; i < k; i += 16) {
      const __m256i bits = scale == 1
                               ? LoadBits(in, r, i)
                               : ToBits(_mm512_mul_ps(LoadFloats(in, r, i), _mm512_set1_ps(scale)));
      _mm256_mask_storeu_epi16(to + i, FirstLanes(k - i), bits);
    }
  }
}

// Blocks of 32 rows x 16 columns of `in`: 16 vectors, each of a pair of rows, whose words are
// transposed as a 16 x 16 matrix to 32 values of each column.
void PackRowsTransposed(const ConstMatrixView& in, void* out, Index stride) {
  const Index k = (in.rows + 1) / 2 * 2;
  auto* to = static_cast<std::uint16_t*>(out);
  const auto load = [&](Index row, Index r) {
    return row < in.rows ? LoadBits(in, row, r) : _mm256_setzero_si256();
  };
  for (Index r = 0; r < in.cols; r += 16) {
    for (Index i = 0; i < k; i += 32) {
      __m512i v[16];
      for (Index j = 0; j < 16; ++j) v[j] = Pairs(load(i + 2 * j, r), load(i + 2 * j + 1, r));
      Transpose16(v);
      const auto mask = static_cast<__mmask32>(k - i >= 32 ? ~0u : (1u << (k - i)) - 1);
      for (Index j = 0; j < std::min<Index>(16, in.cols - r); ++j) {
        _mm512_mask_storeu_epi16(to + (r + j) * stride + i, mask, v[j]);
      }
    }
  }
}

// The pairs of a row are words already; 16 rows x 16 words are transposed.
void PackPanelOfRows(const ConstMatrixView& in, void* panel, Index width) {
  auto* to = static_cast<std::uint32_t*>(panel);
  const Index pairs = (in.cols + 1) / 2;
  for (Index lane = 0; lane < width; lane += 16) {
    for (Index pair = 0; pair < pairs; pair += 16) {
      __m512i v[16];
      for (Index j = 0; j < 16; ++j) {
        v[j] = lane + j < in.rows ? LoadBits32(in, lane + j, 2 * pair) : _mm512_setzero_si512();
      }
      Transpose16(v);
      for (Index j = 0; j < std::min<Index>(16, pairs - pair); ++j) {
        _mm512_storeu_si512(to + (pair + j) * width + lane, v[j]);
      }
    }
  }
}

// Two rows of `in` are one row of the panel, without a transposition.
void PackPanelOfColumns(const ConstMatrixView& in, void* panel, Index width) {
  auto* to = static_cast<std::uint32_t*>(panel);
  for (Index k = 0; k < in.rows; k += 2, to += width) {
    PrefetchRow(in, k);
    PrefetchRow(in, k + 1);
    for (Index lane = 0; lane < width; lane += 16) {
      const __m256i odd = k + 1 < in.rows ? LoadBits(in, k + 1, lane) : _mm256_setzero_si256();
      _mm512_storeu_si512(to + lane, Pairs(LoadBits(in, k, lane), odd));
    }
  }
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
