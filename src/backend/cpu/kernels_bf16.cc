// Packing and products in pairs of bfloat16, for processors with AVX512_BF16. Highway 1.0 has no
// operation for vdpbf16ps, therefore intrinsics.
//
// A packed row holds consecutive bfloat16 values; a panel holds, for each pair of k, `width` lanes
// of two values (the operand of vdpbf16ps).
#include "backend/cpu/kernels_bf16.h"

// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "backend/cpu/bf16_lanes-inl.h"
#include "backend/cpu/kernels_bf16_decoded.h"
#include "backend/cpu/kernels_bf16_dot.h"
#include "backend/cpu/kernels_bf16_prepacked.h"
#include "backend/cpu/kernels_prepacked.h"

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")

namespace qlora::cpu {
namespace {

using bf16::kPanel;
using bf16::kVector;

template <int kRows, int kVectors>
inline __attribute__((always_inline)) void Tile(const Product& p, const std::uint16_t* a,
                                                float* c) {
  const auto* panel = static_cast<const std::uint32_t*>(p.panel);
  const Index pairs = p.k / 2;
  __m512 sum[kRows][kVectors];
  LoadSums(p, c, sum);
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
  StoreSums(p, sum, c);
}

template <int kVectors, int... kHeights>
constexpr auto Tiles(std::integer_sequence<int, kHeights...>) {
  return std::array{Tile<kHeights + 1, kVectors>...};
}

// All rows in tiles of nearly the same height, at most kRows.
template <int kRows, int kVectors>
void MultiplyRows(const Product& p) {
  static constexpr auto kTiles = Tiles<kVectors>(std::make_integer_sequence<int, kRows>());
  const auto* a = static_cast<const std::uint16_t*>(p.a);
  Index tiles = (p.rows + kRows - 1) / kRows;
  for (Index r = 0; tiles > 0; --tiles) {
    const Index height = (p.rows - r + tiles - 1) / tiles;
    kTiles[height - 1](p, a + r * p.a_stride, p.c + r * p.c_stride);
    r += height;
  }
}

}  // namespace

void bf16::Multiply(const Product& p) {
  switch (p.width / kVector) {
    case 1:
      return MultiplyRows<12, 1>(p);
    case 2:
      return MultiplyRows<12, 2>(p);
    case 3:
      return MultiplyRows<8, 3>(p);
    default:
      return MultiplyRows<6, 4>(p);
  }
}

namespace {

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

// Lanes of two rows side by side.
__m512i Pairs(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

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

// Fetches what is packed kAhead rows later: a processor does not foresee steps as wide as a row.
inline __attribute__((always_inline)) void PrefetchRow(const ConstMatrixView& in, Index row) {
  if (in.stride == in.cols) return;
  constexpr Index kAhead = 32;
  const auto bytes = static_cast<Index>(BytesOf(in.dtype, 1));
  const char* first = static_cast<const char*>(in.data) + (row + kAhead) * in.stride * bytes;
  for (Index i = 0; i < in.cols * bytes; i += 64) _mm_prefetch(first + i, _MM_HINT_T1);
}

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
    auto* to = static_cast<std::uint16_t*>(out) + r * stride;
    for (Index chunk = 0; chunk < in.chunks; ++chunk) {
      const Chunk values = decode(packed + chunk * (kChunk / 2), in.scales.At(r, chunk));
      _mm512_storeu_si512(to + chunk * kChunk, values.first);
      _mm512_storeu_si512(to + chunk * kChunk + 32, values.second);
    }
  }
}

// A tile of multiply whose rows are decoded 64 values at a time into a buffer in the first-level
// cache. Decoding runs on other units than vdpbf16ps and overlaps with it: while one chunk is
// multiplied the next one is decoded, a few rows at a time between a few values of k.
template <int kRows, int kVectors>
void ChunksTile(const QuantizedChunks& in, Index row, const Product& p, float* c) {
  constexpr int kParts = kRows % 4 == 0 ? 4 : kRows % 2 == 0 ? 2 : 1;
  constexpr Index kPairs = kChunk / 2;
  const Decoder decode(in.code);
  const std::uint8_t* packed = in.packed + row * in.row_bytes;
  const auto* panel = static_cast<const std::uint32_t*>(p.panel);
  // The same chunks of the rows that come next.
  const Index ahead = kRows * in.row_bytes;
  __m512 sum[kRows][kVectors];
  LoadSums(p, c, sum);
  alignas(64) std::uint32_t buffer[2][kRows][kPairs];
  const auto decode_rows = [&](Index chunk, int first, int count) {
    for (int r = first; r < first + count; ++r) {
      const std::uint8_t* from = packed + r * in.row_bytes + chunk * (kChunk / 2);
      _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_T1);
      const Chunk values = decode(from, in.scales.At(row + r, chunk));
      _mm512_store_si512(buffer[chunk % 2][r], values.first);
      _mm512_store_si512(buffer[chunk % 2][r] + 16, values.second);
    }
  };
  decode_rows(0, 0, kRows);
  for (Index chunk = 0; chunk < in.chunks; ++chunk) {
    const auto& rows = buffer[chunk % 2];
    for (int part = 0; part < kParts; ++part) {
      if (chunk + 1 < in.chunks) decode_rows(chunk + 1, part * kRows / kParts, kRows / kParts);
      const Index end = (part + 1) * kPairs / kParts;
      for (Index k = part * kPairs / kParts; k < end; ++k, panel += p.width) {
        __m512bh lane[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          lane[v] = (__m512bh)_mm512_loadu_si512(panel + v * kVector);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const auto value = (__m512bh)_mm512_set1_epi32(static_cast<int>(rows[r][k]));
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) {
            sum[r][v] = _mm512_dpbf16_ps(sum[r][v], value, lane[v]);
          }
        }
      }
    }
  }
  StoreSums(p, sum, c);
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

}  // namespace

const Kernels& Bfloat16Kernels() {
  static const Kernels kTable = {
      .name = "avx512bf16",
      .panel = kPanel,
      .vector = kVector,
      .step = 2,
      .bytes = 2,
      .reads_float_rows = false,
      .most_dot_rows = 3 * kDotBatch,
      .most_prepacked_rows = HasVbmi() ? 8 * bf16::kPrepackedBatch : 0,
      .fewest_repacked_rows = std::numeric_limits<std::int64_t>::max(),
      .prepacked_batch = bf16::kPrepackedBatch,
      .multiply = bf16::Multiply,
      .pack_rows = PackRows,
      .pack_rows_transposed = PackRowsTransposed,
      .pack_panel_of_rows = PackPanelOfRows,
      .pack_panel_of_columns = PackPanelOfColumns,
      .decode_rows = DecodeRows,
      .multiply_chunks = MultiplyChunks,
      .multiply_decoded_panels = bf16::MultiplyDecodedPanels,
      .pack_dot_rows = bf16::PackDotRows,
      .dot_rows = bf16::DotRows,
      .pack_dot_chunks = bf16::PackDotChunks,
      .dot_chunks = bf16::DotChunks,
      .pack_dot_prepacked = bf16::PackDotPrepacked,
      .dot_prepacked = bf16::DotPrepacked,
      .unpack_panel = UnpackPanel,
  };
  return kTable;
}

}  // namespace qlora::cpu
#pragma GCC pop_options
