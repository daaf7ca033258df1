// Prepacks 4-bit weights and unpacks them, and their dot products in float32 (AVX512_VBMI).
// gemm/prepacked.h draws the order.
//
// Row-major weights have 8 nibbles of a row in a word; prepacked, a vector has the same word of 16
// rows. Both directions are therefore transpositions of 16 x 16 words:
//
//   row 0    w0 w1 w2 ... w15            vector w0    row 0  row 1 ... row 15
//   row 1    w0 w1 w2 ... w15     <->    vector w1    row 0  row 1 ... row 15
//   ...                                  ...
//   row 15   w0 w1 w2 ... w15            vector w15   row 0  row 1 ... row 15
#include "backend/cpu/gemm/prepacked.h"

#include <algorithm>

#include "backend/cpu/views.h"
#include "backend/cpu/x86/avx512-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512vbmi")
// With these target options.
#include "backend/cpu/x86/prepacked_dot-inl.h"

namespace qlora::cpu {
namespace {

// One column after the other. Nibble `step` of a word of 32 bits is column step ^ 1, because the
// first of two columns is in the high nibble of their byte.
struct ColumnValues {
  static constexpr int kSteps = 8;
  static constexpr int kMost = 24;

  HWY_INLINE explicit ColumnValues(const float* code) : table(_mm512_loadu_ps(code)) {}
  // From a byte on, so that only every other step has to shift. Lines that are read several times,
  // and across, had better be in the first-level cache.
  static HWY_INLINE __m512i Load(const std::byte* at, int step) {
    if (step == 0) _mm_prefetch(at + 512, _MM_HINT_T0);
    __m512i words = _mm512_loadu_si512(at + step / 2);
    // Otherwise GCC reads it twice, and a load across lines of the cache is worth two.
    __asm__("" : "+v"(words));
    return words;
  }
  HWY_INLINE __m512 Lookup(__m512i words, int step) const {
    return _mm512_permutexvar_ps(step % 2 ? _mm512_srli_epi32(words, 4) : words, table);
  }
  static HWY_INLINE __m512 MulAdd(__m512 sum, __m512 values, const float* x) {
    return _mm512_fmadd_ps(values, _mm512_set1_ps(*x), sum);
  }

  __m512 table;
};

Index GroupBytes(Index scale_bytes) {
  return kPrepackedGroup * (kPrepackedRows * scale_bytes + kPrepackedChunkBytes);
}

// Words [word, word + 16) of 16 rows of bytes, words of a row at or beyond `end` are zero; then
// word i of all rows in v[i].
HWY_INLINE void LoadColumnsOfWords(const std::byte* rows, Index stride, Index word, Index end,
                                   __m512i (&v)[16]) {
  const __mmask16 mask = FirstLanes(end - word);
  for (Index r = 0; r < kPrepackedRows; ++r) {
    v[r] = _mm512_maskz_loadu_epi32(mask, rows + r * stride + 4 * word);
  }
  Transpose16(v);
}

// A scale is a word, so the scales of a panel are transposed like its values.
void PrepackFloatScales(const float* scales, Index chunks, std::byte* panel) {
  const Index padded = RoundUp(chunks, kPrepackedGroup);
  for (Index first = 0; first < chunks; first += 16) {
    __m512i v[16];
    LoadColumnsOfWords(reinterpret_cast<const std::byte*>(scales), 4 * chunks, first, chunks, v);
    for (Index c = first; c < std::min(first + 16, padded); ++c) {
      std::byte* group = panel + c / kPrepackedGroup * GroupBytes(4);
      _mm512_storeu_si512(group + c % kPrepackedGroup * 64, v[c - first]);
    }
  }
}

// A word is the codes of one group in a row: 4 bytes, which are then transposed within each quarter
// of 4 rows, so that a word has the codes of 4 rows for one chunk.
void PrepackScaleCodes(const std::byte* codes, Index chunks, std::byte* panel) {
  const __m512i transposed =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const Index groups = chunks / kPrepackedGroup;
  for (Index first = 0; first < groups; first += 16) {
    __m512i v[16];
    LoadColumnsOfWords(codes, chunks, first, groups, v);
    for (Index g = first; g < std::min(first + 16, groups); ++g, panel += GroupBytes(1)) {
      _mm512_storeu_si512(panel, _mm512_shuffle_epi8(v[g - first], transposed));
    }
  }
  const Index rest = chunks % kPrepackedGroup;
  if (rest == 0) return;
  std::fill_n(panel, kPrepackedGroup * kPrepackedRows, std::byte{0});
  for (Index r = 0; r < kPrepackedRows; ++r) {
    for (Index c = 0; c < rest; ++c) {
      panel[(r / 4 * kPrepackedGroup + c) * 4 + r % 4] =
          codes[r * chunks + groups * kPrepackedGroup + c];
    }
  }
}

// Two chunks of a row are 16 words, one transposition.
void PrepackValues(const std::uint8_t* packed, Index chunks, Index scale_bytes, std::byte* panel) {
  constexpr Index kWords = kChunk / 8;  // of a chunk in a row
  const auto* rows = reinterpret_cast<const std::byte*>(packed);
  for (Index c = 0; c < chunks; c += 2) {
    __m512i v[16];
    LoadColumnsOfWords(rows, chunks * (kChunk / 2), c * kWords, chunks * kWords, v);
    const Index group = c / kPrepackedGroup;
    std::byte* to = panel + group * GroupBytes(scale_bytes) +
                    kPrepackedGroup * kPrepackedRows * scale_bytes +
                    c % kPrepackedGroup * kPrepackedChunkBytes;
    const Index words = kWords * std::min<Index>(2, chunks - c);
    for (Index w = 0; w < words; ++w) _mm512_storeu_si512(to + 64 * w, v[w]);
  }
}

// The nearest bfloat16 (even on a tie) as float32; NaN stays NaN.
inline __m512 RoundToBfloat16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_mask_blend_epi32(nan, rounded, quiet), _mm512_set1_epi32(-0x10000)));
}

// Packs x for `dot`: groups of 8 columns; in each, the rows one after the other, with columns 1, 0,
// 3, 2, 5, 4, 7, 6: in the order of the nibbles of a word.
template <bool kRound>
void PackDotPrepacked(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<float*>(out);
  for (Index k = 0; k < in.cols; k += 16, to += 16 * in.rows) {
    for (Index m = 0; m < in.rows; ++m) {
      const __m512 values = LoadFloats(in, m, k);
      const __m512 columns = _mm512_permute_ps(kRound ? RoundToBfloat16(values) : values, 0xb1);
      _mm256_storeu_ps(to + 8 * m, _mm512_castps512_ps256(columns));
      _mm256_storeu_ps(to + 8 * (in.rows + m), _mm512_extractf32x8_ps(columns, 1));
    }
  }
}

// Byte p of all 256 values in plane p: each plane is a table of bytes, which is looked up by
// itself.
void PackScaleMap(const float* nested_code, std::byte* map) {
  for (Index i = 0; i < 256; i += 16) {
    const __m512i values = _mm512_loadu_si512(nested_code + i);
    const auto store = [&](Index plane, __m512i bytes) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(map + 256 * plane + i),
                       _mm512_cvtepi32_epi8(bytes));
    };
    store(0, values);
    store(1, _mm512_srli_epi32(values, 8));
    store(2, _mm512_srli_epi32(values, 16));
    store(3, _mm512_srli_epi32(values, 24));
  }
}

void PackPanel(const QuantizedView& q, Index row, std::byte* panel) {
  const Index chunks = q.cols / kChunk;
  const bool codes = q.scale_type == ScaleType::kDoubleBnb;
  if (codes) {
    PrepackScaleCodes(static_cast<const std::byte*>(q.scales) + row * chunks, chunks, panel);
  } else {
    PrepackFloatScales(static_cast<const float*>(q.scales) + row * chunks, chunks, panel);
  }
  PrepackValues(q.packed + row * (q.cols / 2), chunks, codes ? 1 : 4, panel);
}

// The inverse of PackPanel for a part of the chunks: products with many rows decode row-major
// weights.
void UnpackPanel(const PrepackedRows& in, Index chunk, Index chunks, std::uint8_t* packed,
                 float* scales) {
  PanelScales panel_scales(in, 0, chunk);
  const Index row_bytes = chunks * (kChunk / 2);
  const std::byte* at =
      in.panels + chunk / kPrepackedGroup * panel_scales.bytes() + chunk * kPrepackedChunkBytes;
  alignas(64) float room[kPrepackedGroup * kPrepackedRows];
  for (Index c = 0; c < chunks; c += kPrepackedGroup) {
    const Index n = std::min(kPrepackedGroup, chunks - c);
    const float* scale = panel_scales.Group(at, n, room);
    at += panel_scales.bytes();
    for (Index i = 0; i < n; ++i) {
      for (Index r = 0; r < kPrepackedRows; ++r) {
        scales[r * chunks + c + i] = scale[i * kPrepackedRows + r];
      }
    }
    for (Index i = 0; i < n; i += 2) {  // two chunks make 16 words of every row
      const Index words = 8 * std::min<Index>(2, n - i);
      __m512i v[16];
      for (Index w = 0; w < 16; ++w) {
        v[w] = w < words ? _mm512_load_si512(at + 64 * w) : _mm512_setzero_si512();
      }
      at += 64 * words;
      Transpose16(v);
      for (Index r = 0; r < kPrepackedRows; ++r) {
        _mm512_mask_storeu_epi32(packed + r * row_bytes + (c + i) * (kChunk / 2), FirstLanes(words),
                                 v[r]);
      }
    }
  }
}

}  // namespace
}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES

namespace qlora::cpu {

const PrepackedKernels* FloatPrepackedKernels(bool round) {
  static constexpr PrepackedKernels kExact = {
      .batch = ColumnValues::kMost,
      .fewest_repacked_rows = 4,
      .pack_scale_map = PackScaleMap,
      .pack_panel = PackPanel,
      .unpack_panel = UnpackPanel,
      .pack_x = PackDotPrepacked<false>,
      .dot = DotPanelsOf<ColumnValues>,
  };
  static constexpr PrepackedKernels kRounded = [] {
    PrepackedKernels table = kExact;
    table.pack_x = PackDotPrepacked<true>;
    return table;
  }();
  if (!__builtin_cpu_supports("avx512vbmi")) return nullptr;
  return round ? &kRounded : &kExact;
}

}  // namespace qlora::cpu
