// Packing and products in pairs of bfloat16, for processors with AVX512_BF16. Highway 1.0 has no
// operation for vdpbf16ps, therefore intrinsics.
//
// A packed row holds consecutive bfloat16 values; a panel holds, for each pair of k, `width` lanes
// of two values (the operand of vdpbf16ps).

// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/kernels.h"

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")

namespace qlora::cpu {
namespace {

using Index = std::int64_t;
constexpr Index kPanel = 64;   // lanes: 6 rows x 4 vectors = 24 sums of the 32 registers
constexpr Index kVector = 16;  // lanes of one register of sums

const std::uint16_t* Row16(const ConstMatrixView& m, Index row) {
  return static_cast<const std::uint16_t*>(m.data) + row * m.stride;
}
const float* Row32(const ConstMatrixView& m, Index row) {
  return static_cast<const float*>(m.data) + row * m.stride;
}

__mmask16 FirstLanes(Index count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << std::max<Index>(count, 0)) - 1);
}

// Elements [i, i + 16) of a row as float32; those at or beyond row end `n` are zero.
__m512 LoadFloats(const ConstMatrixView& m, Index row, Index i) {
  const __mmask16 mask = FirstLanes(m.cols - i);
  if (m.dtype == DType::kF32) return _mm512_maskz_loadu_ps(mask, Row32(m, row) + i);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, Row16(m, row) + i);
  if (m.dtype == DType::kF16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

__m256i ToBits(__m512 v) { return (__m256i)_mm512_cvtneps_pbh(v); }

// The same as bfloat16.
__m256i LoadBits(const ConstMatrixView& m, Index row, Index i) {
  if (m.dtype == DType::kBF16) {
    return _mm256_maskz_loadu_epi16(FirstLanes(m.cols - i), Row16(m, row) + i);
  }
  return ToBits(LoadFloats(m, row, i));
}
__m512i LoadBits32(const ConstMatrixView& m, Index row, Index i) {
  const __m512i low = _mm512_castsi256_si512(LoadBits(m, row, i));
  if (i + 16 >= m.cols) return _mm512_inserti64x4(low, _mm256_setzero_si256(), 1);
  return _mm512_inserti64x4(low, LoadBits(m, row, i + 16), 1);
}

template <int kRows, int kVectors>
inline __attribute__((always_inline)) void Tile(const Product& p, const std::uint16_t* a,
                                                float* c) {
  const auto* panel = static_cast<const std::uint32_t*>(p.panel);
  const Index pairs = p.k / 2;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = p.add ? _mm512_loadu_ps(c + r * p.c_stride + v * kVector) : _mm512_setzero_ps();
    }
  }
  for (Index k = 0; k < pairs; ++k) {
    __m512bh lane[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      lane[v] = (__m512bh)_mm512_loadu_si512(panel + k * p.width + v * kVector);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + r * p.a_stride + 2 * k, sizeof(pair));
      const auto value = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], value, lane[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(c + r * p.c_stride + v * kVector, sum[r][v]);
    }
  }
}

// Rows from `r` on in tiles of kRows, the rest in tiles of half as many, and so on.
template <int kRows, int kVectors>
void MultiplyRows(const Product& p, Index r) {
  const auto* a = static_cast<const std::uint16_t*>(p.a);
  for (; r + kRows <= p.rows; r += kRows) {
    Tile<kRows, kVectors>(p, a + r * p.a_stride, p.c + r * p.c_stride);
  }
  if constexpr (kRows > 1) {
    if (r < p.rows) MultiplyRows<kRows / 2, kVectors>(p, r);
  }
}

void Multiply(const Product& p) {
  switch (p.width / kVector) {
    case 1:
      return MultiplyRows<12, 1>(p, 0);
    case 2:
      return MultiplyRows<12, 2>(p, 0);
    case 3:
      return MultiplyRows<8, 3>(p, 0);
    default:
      return MultiplyRows<6, 4>(p, 0);
  }
}

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

void PackRowsTransposed(const ConstMatrixView& in, void* out, Index stride) {
  const Index k = (in.rows + 1) / 2 * 2;
  auto* to = static_cast<std::uint16_t*>(out);
  for (Index i = 0; i < k; ++i) {
    for (Index r = 0; r < in.cols; r += 16) {
      alignas(32) std::uint16_t bits[16];
      _mm256_store_si256(reinterpret_cast<__m256i*>(bits),
                         i < in.rows ? LoadBits(in, i, r) : _mm256_setzero_si256());
      for (Index j = 0; j < std::min<Index>(16, in.cols - r); ++j)
        to[(r + j) * stride + i] = bits[j];
    }
  }
}

// In place: element j of v[i] becomes element i of v[j].
inline __attribute__((always_inline)) void Transpose16(__m512i (&v)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i even_low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
    t[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    t[i + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

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

// Lanes of two rows side by side.
__m512i Pairs(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

void PackPanelOfColumns(const ConstMatrixView& in, void* panel, Index width) {
  auto* to = static_cast<std::uint32_t*>(panel);
  for (Index k = 0; k < in.rows; k += 2, to += width) {
    for (Index lane = 0; lane < width; lane += 16) {
      const __m256i odd = k + 1 < in.rows ? LoadBits(in, k + 1, lane) : _mm256_setzero_si256();
      _mm512_storeu_si512(to + lane, Pairs(LoadBits(in, k, lane), odd));
    }
  }
}

struct Chunk {
  __m512i first;   // values 0 ... 31
  __m512i second;  // values 32 ... 63
};

// Decodes chunks to bfloat16(code * scale): a table of the 16 values of a chunk, looked up by
// nibbles.
class Decoder {
 public:
  explicit Decoder(const float* code) : code_(_mm512_loadu_ps(code)) {}

  inline __attribute__((always_inline)) Chunk operator()(const std::uint8_t* packed,
                                                         float scale) const {
    const __m512 values = _mm512_mul_ps(code_, _mm512_set1_ps(scale));
    // vpermw reads five bits of an index, and bit 4 is stray: the table is there twice.
    const auto table = (__m512i)_mm512_cvtne2ps_pbh(values, values);
    return {Lookup(packed, table), Lookup(packed + 16, table)};
  }

 private:
  // 16 bytes to 32 values: every byte in two words, shifted by 4 in the first.
  inline __attribute__((always_inline)) __m512i Lookup(const std::uint8_t* packed,
                                                       __m512i table) const {
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
    const __m512i words = _mm512_srlv_epi16(_mm512_shuffle_epi8(bytes, spread_), shifts_);
    return _mm512_permutexvar_epi16(words, table);
  }

  const __m512 code_;
  // Lane l of 128 bits takes bytes 4 l ... 4 l + 3, each twice; 0x80 makes a zero.
  const __m512i spread_ = _mm512_add_epi8(
      _mm512_broadcast_i32x4(_mm_set_epi32(0x80038003, 0x80028002, 0x80018001, 0x80008000)),
      _mm512_set_epi32(0xc000c, 0xc000c, 0xc000c, 0xc000c, 0x80008, 0x80008, 0x80008, 0x80008,
                       0x40004, 0x40004, 0x40004, 0x40004, 0, 0, 0, 0));
  const __m512i shifts_ = _mm512_set1_epi32(4);
};

void DecodeRows(const QuantizedChunks& in, void* out, Index stride) {
  const Decoder decode(in.code);
  for (Index r = 0; r < in.rows; ++r) {
    const std::uint8_t* packed = in.packed + r * in.row_bytes;
    const float* scales = in.scales + r * in.scale_stride;
    auto* to = static_cast<std::uint16_t*>(out) + r * stride;
    for (Index chunk = 0; chunk < in.chunks; ++chunk) {
      const Chunk values = decode(packed + chunk * (kChunk / 2), scales[chunk]);
      _mm512_storeu_si512(to + chunk * kChunk, values.first);
      _mm512_storeu_si512(to + chunk * kChunk + 32, values.second);
    }
  }
}

void DecodePanels(const QuantizedChunks& in, void* panels) {
  const Decoder decode(in.code);
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  auto* to = static_cast<std::uint32_t*>(panels);
  for (Index r = 0; r < in.rows; r += 2, to += kPanel) {
    const std::uint8_t* packed = in.packed + r * in.row_bytes;
    // Rows lie too far apart for the processor to see where this is going.
    constexpr Index kAhead = 32;
    _mm_prefetch(reinterpret_cast<const char*>(packed + kAhead * in.row_bytes), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(packed + (kAhead + 1) * in.row_bytes), _MM_HINT_T0);
    const Chunk even = decode(packed, in.scales[r * in.scale_stride]);
    Chunk odd = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    if (r + 1 < in.rows) {
      odd = decode(packed + in.row_bytes, in.scales[(r + 1) * in.scale_stride]);
    }
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even.first, low, odd.first));
    _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(even.first, high, odd.first));
    _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi16(even.second, low, odd.second));
    _mm512_storeu_si512(to + 48, _mm512_permutex2var_epi16(even.second, high, odd.second));
  }
}

// A tile of multiply whose rows are decoded 64 values at a time into a buffer in the first-level
// cache. Decoding runs on other units than vdpbf16ps and overlaps with the products before it.
template <int kRows, int kVectors>
void ChunksTile(const QuantizedChunks& in, Index row, const Product& p, float* c) {
  const Decoder decode(in.code);
  const std::uint8_t* packed = in.packed + row * in.row_bytes;
  const float* scales = in.scales + row * in.scale_stride;
  const auto* panel = static_cast<const std::uint32_t*>(p.panel);
  // The same chunks of the rows that come next.
  const Index ahead = kRows * in.row_bytes;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = p.add ? _mm512_loadu_ps(c + r * p.c_stride + v * kVector) : _mm512_setzero_ps();
    }
  }
  alignas(64) std::uint32_t buffer[kRows][kChunk / 2];
  for (Index chunk = 0; chunk < in.chunks; ++chunk) {
    for (int r = 0; r < kRows; ++r) {
      const std::uint8_t* from = packed + r * in.row_bytes + chunk * (kChunk / 2);
      _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_T1);
      const Chunk values = decode(from, scales[r * in.scale_stride + chunk]);
      _mm512_store_si512(buffer[r], values.first);
      _mm512_store_si512(buffer[r] + 16, values.second);
    }
    for (Index k = 0; k < kChunk / 2; ++k, panel += p.width) {
      __m512bh lane[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        lane[v] = (__m512bh)_mm512_loadu_si512(panel + v * kVector);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto value = (__m512bh)_mm512_set1_epi32(static_cast<int>(buffer[r][k]));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = _mm512_dpbf16_ps(sum[r][v], value, lane[v]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(c + r * p.c_stride + v * kVector, sum[r][v]);
    }
  }
}

template <int kRows, int kVectors>
void ChunksRows(const QuantizedChunks& in, const Product& p, Index r) {
  for (; r + kRows <= p.rows; r += kRows) {
    ChunksTile<kRows, kVectors>(in, r, p, p.c + r * p.c_stride);
  }
  if constexpr (kRows > 1) {
    if (r < p.rows) ChunksRows<kRows / 2, kVectors>(in, p, r);
  }
}

void MultiplyChunks(const QuantizedChunks& in, const Product& p) {
  switch (p.width / kVector) {
    case 1:
      return ChunksRows<12, 1>(in, p, 0);
    case 2:
      return ChunksRows<8, 2>(in, p, 0);
    case 3:
      return ChunksRows<6, 3>(in, p, 0);
    default:
      return ChunksRows<4, 4>(in, p, 0);
  }
}

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

template <int kCount>
void DotRowsOf(const void* rows, Index stride, const DotProduct& p) {
  for (Index r = 0; r < p.rows; ++r) {
    const std::uint16_t* row = static_cast<const std::uint16_t*>(rows) + r * stride;
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
      _mm_prefetch(reinterpret_cast<const char*>(row + k + 2048), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(row + k + 2080), _MM_HINT_T0);
      add(_mm512_loadu_si512(row + k), _mm512_loadu_si512(row + k + 32));
    }
    if (k < p.k) {
      const auto low = static_cast<__mmask32>(p.k - k >= 32 ? ~0u : (1u << (p.k - k)) - 1);
      const auto high = static_cast<__mmask32>(p.k - k > 32 ? (1u << (p.k - k - 32)) - 1 : 0);
      add(_mm512_maskz_loadu_epi16(low, row + k), _mm512_maskz_loadu_epi16(high, row + k + 32));
    }
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      p.out[m * p.out_stride + r] = _mm512_reduce_add_ps(_mm512_add_ps(sum[m][0], sum[m][1]));
    }
  }
}

// Groups of 128 columns; in each, the rows one after the other, padded with zeros. The four nibbles
// of a 16-bit word of the packed weight meet four vectors of x: columns 4 w + 1, 4 w, 4 w + 3 and
// 4 w + 2 of words w = 0 ... 31.
void PackDotChunks(const ConstMatrixView& in, void* out) {
  constexpr int kColumn[4] = {1, 0, 3, 2};
  auto* to = static_cast<std::uint16_t*>(out);
  for (Index k = 0; k < in.cols; k += 128) {
    for (Index m = 0; m < in.rows; ++m) {
      alignas(64) std::uint16_t bits[128];
      for (Index i = 0; i < 128; i += 32) _mm512_store_si512(bits + i, LoadBits32(in, m, k + i));
      for (const int column : kColumn) {
        for (int word = 0; word < 32; ++word) *to++ = bits[4 * word + column];
      }
    }
  }
}

// What is fetched early while kRows rows of a weight are read.
template <int kRows>
inline __attribute__((always_inline)) void FetchAhead(const QuantizedChunks& in,
                                                      const std::uint8_t* packed) {
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(packed + (kRows + i) * in.row_bytes), _MM_HINT_T1);
  }
}

// Two chunks of a row of the weight, or one and zeros.
inline __attribute__((always_inline)) __m512i LoadChunks(const std::uint8_t* packed, bool whole) {
  return whole ? _mm512_loadu_si512(packed) : _mm512_maskz_loadu_epi64(0x0f, packed);
}

// The four nibbles of every word of two chunks, looked up in `table` by their low five bits.
struct ChunkValues {
  __m512bh of[4];
};
inline __attribute__((always_inline)) ChunkValues LookUpNibbles(__m512i words, __m512i table) {
  const auto look_up = [&](__m512i index) __attribute__((always_inline)) {
    return (__m512bh)_mm512_permutexvar_epi16(index, table);
  };
  return {{look_up(words), look_up(_mm512_srli_epi16(words, 4)),
           look_up(_mm512_srli_epi16(words, 8)), look_up(_mm512_srli_epi16(words, 12))}};
}

// kRows rows of the weight at a time share what is loaded of x. For one or two rows of x: the sum
// over a chunk is scaled, not the sixteen values of its table, so that values are rounded to
// bfloat16 before they are scaled instead of afterwards: the same relative error.
template <int kCount, int kRows>
inline __attribute__((always_inline)) void DotScaledSums(const QuantizedChunks& in,
                                                         const DotProduct& p, Index r) {
  const auto code = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(in.code));
  const __m512i table = _mm512_broadcast_i64x4(code);  // twice: bit 4 of an index means nothing
  const std::uint8_t* packed = in.packed + r * in.row_bytes;
  const float* scales = in.scales + r * in.scale_stride;
  const auto* x = static_cast<const std::uint16_t*>(p.x);
  __m512 sum[kRows][kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int m = 0; m < kCount; ++m) sum[i][m] = _mm512_setzero_ps();
  }
  const auto add = [&](Index chunk, bool whole) __attribute__((always_inline)) {
    FetchAhead<kRows>(in, packed);
    __m512 scale[kRows];  // eight lanes of the first chunk, eight of the second
    ChunkValues weights[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const float* from = scales + i * in.scale_stride + chunk;
      const __m128 second = whole ? _mm_load_ss(from + 1) : _mm_setzero_ps();
      scale[i] = _mm512_mask_broadcastss_ps(_mm512_set1_ps(from[0]), 0xff00, second);
      weights[i] = LookUpNibbles(LoadChunks(packed + i * in.row_bytes, whole), table);
    }
#pragma GCC unroll 2
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
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int m = 0; m < kCount; ++m) {
      p.out[m * p.out_stride + r + i] = _mm512_reduce_add_ps(sum[i][m]);
    }
  }
}

// The same for more rows of x: the tables are scaled, once for all rows.
template <int kCount, int kRows>
inline __attribute__((always_inline)) void DotScaledTables(const QuantizedChunks& in,
                                                           const DotProduct& p, Index r) {
  const __m512 code = _mm512_loadu_ps(in.code);
  const __m512i nibble = _mm512_set1_epi16(0x0f0f);
  // Words of the second chunk look up the second half of the table.
  const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(0x1010), 1);
  const std::uint8_t* packed = in.packed + r * in.row_bytes;
  const float* scales = in.scales + r * in.scale_stride;
  const auto* x = static_cast<const std::uint16_t*>(p.x);
  __m512 sum[kRows][kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) sum[i][m] = _mm512_setzero_ps();
  }
  const auto add = [&](Index chunk, bool whole) __attribute__((always_inline)) {
    FetchAhead<kRows>(in, packed);
    __m512i table[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const float* scale = scales + i * in.scale_stride + chunk;
      const __m512 first = _mm512_mul_ps(code, _mm512_set1_ps(scale[0]));
      const __m512 second =
          whole ? _mm512_mul_ps(code, _mm512_set1_ps(scale[1])) : _mm512_setzero_ps();
      table[i] = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    }
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
              byte == 0 ? index[i] : _mm512_srli_epi16(index[i], 8), table[i]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < kCount; ++m) {
          const auto values = (__m512bh)_mm512_loadu_si512(x + 128 * m + 32 * (n + 2 * byte));
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i) {
            sum[i][m] = _mm512_dpbf16_ps(sum[i][m], weights[i], values);
          }
        }
      }
    }
    packed += kChunk;
    x += 128 * kCount;
  };
  Index chunk = 0;
  for (; chunk + 2 <= in.chunks; chunk += 2) add(chunk, true);
  if (chunk < in.chunks) add(chunk, false);
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      p.out[m * p.out_stride + r + i] = _mm512_reduce_add_ps(sum[i][m]);
    }
  }
}

template <int kCount, int kRows>
inline __attribute__((always_inline)) void DotRowsOfChunks(const QuantizedChunks& in,
                                                           const DotProduct& p, Index r) {
  if constexpr (kCount <= 2) {
    DotScaledSums<kCount, kRows>(in, p, r);
  } else {
    DotScaledTables<kCount, kRows>(in, p, r);
  }
}

template <int kCount>
void DotChunksOf(const QuantizedChunks& in, const DotProduct& p) {
  constexpr int kRows = kCount <= 4 ? 4 : 2;
  Index r = 0;
  for (; r + kRows <= in.rows; r += kRows) DotRowsOfChunks<kCount, kRows>(in, p, r);
  for (; r < in.rows; ++r) DotRowsOfChunks<kCount, 1>(in, p, r);
}

template <int... kCounts>
constexpr auto DotRowsTable(std::integer_sequence<int, kCounts...>) {
  return std::array{DotRowsOf<kCounts + 1>...};
}
void DotRows(const void* rows, Index stride, const DotProduct& p) {
  static constexpr auto kTable = DotRowsTable(std::make_integer_sequence<int, kMostDotRows>());
  kTable[static_cast<std::size_t>(p.count - 1)](rows, stride, p);
}

template <int... kCounts>
constexpr auto DotChunksTable(std::integer_sequence<int, kCounts...>) {
  return std::array{DotChunksOf<kCounts + 1>...};
}
void DotChunks(const QuantizedChunks& in, const DotProduct& p) {
  static constexpr auto kTable = DotChunksTable(std::make_integer_sequence<int, kMostDotRows>());
  kTable[static_cast<std::size_t>(p.count - 1)](in, p);
}

}  // namespace

const Kernels& Bfloat16Kernels() {
  static constexpr Kernels kTable = {
      .name = "avx512bf16",
      .panel = kPanel,
      .vector = kVector,
      .step = 2,
      .bytes = 2,
      .direct = DType::kBF16,
      .multiply = Multiply,
      .pack_rows = PackRows,
      .pack_rows_transposed = PackRowsTransposed,
      .pack_panel_of_rows = PackPanelOfRows,
      .pack_panel_of_columns = PackPanelOfColumns,
      .decode_rows = DecodeRows,
      .decode_panels = DecodePanels,
      .multiply_chunks = MultiplyChunks,
      .pack_dot_rows = PackDotRows,
      .dot_rows = DotRows,
      .pack_dot_chunks = PackDotChunks,
      .dot_chunks = DotChunks,
  };
  return kTable;
}

}  // namespace qlora::cpu
#pragma GCC pop_options
