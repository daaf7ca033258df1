// How 4-bit values become pairs of bfloat16: everything that the kernels of pairs know of the
// format of a weight. All ways look nibbles up in a register of 16 values (vpermw).
#ifndef QLORA_BACKEND_CPU_X86_BF16_FORMAT_INL_H_
#define QLORA_BACKEND_CPU_X86_BF16_FORMAT_INL_H_

#include "backend/cpu/gemm/format.h"
#include "backend/cpu/x86/avx512-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {

// ---- In the order of columns.

struct ChunkPairs {
  __m512i first;   // values 0 ... 31
  __m512i second;  // values 32 ... 63
};

// Decodes chunks to bfloat16(code * scale): a table of the 16 values of a chunk, looked up by
// nibbles.
class ChunkDecoder {
 public:
  explicit ChunkDecoder(const float* code) : code_(_mm512_loadu_ps(code)) {}

  HWY_INLINE ChunkPairs operator()(const std::uint8_t* packed, float scale) const {
    const __m512 values = _mm512_mul_ps(code_, _mm512_set1_ps(scale));
    // vpermw reads five bits of an index, and bit 4 is stray: the table is there twice.
    const auto table = (__m512i)_mm512_cvtne2ps_pbh(values, values);
    return {Lookup(packed, table), Lookup(packed + 16, table)};
  }

 private:
  // 16 bytes to 32 values: every byte in two words, shifted by 4 in the first.
  HWY_INLINE __m512i Lookup(const std::uint8_t* packed, __m512i table) const {
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

// ---- Columns as lanes: the values of two rows side by side, as in a panel.

// The chunks of two rows of a weight, and their values: 16 of the first row, 16 of the second.
struct RowPair {
  __m512i packed;
  __m512i table;
};

// Brings the pairs of rows of one chunk together: rows are too far apart for the processor to
// foresee where the next ones are, and often at a distance that leaves them few lines of the cache.
struct PairGatherer {
  __m512 code;
  const std::uint8_t* packed;
  Index row_bytes;
  const float* scales;
  Index stride;  // of scales
  Index rows;    // 0: none

  Index pairs() const { return (rows + 1) / 2; }
  HWY_INLINE RowPair operator()(Index pair) const {
    const std::uint8_t* from = packed + 2 * pair * row_bytes;
    constexpr Index kAhead = 128;  // rows
    const std::uint8_t* later = from + kAhead * row_bytes;
    _mm_prefetch(later, _MM_HINT_T1);
    _mm_prefetch(later + row_bytes, _MM_HINT_T1);
    // After an odd last row comes one of zeros.
    const bool both = 2 * pair + 1 < rows;
    const __m512i even =
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __m256i odd =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(both ? from + row_bytes : from));
    const float* scale = scales + 2 * pair * stride;
    const __m512 odd_scale = _mm512_set1_ps(both ? scale[stride] : 0.0f);
    return {_mm512_inserti64x4(even, odd, 1),
            (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(code, odd_scale),
                                         _mm512_mul_ps(code, _mm512_set1_ps(*scale)))};
  }
};

// Pair i of every 16 is in byte i / 2 of eight of each row: in word i / 4 of four.
struct alignas(64) PairPlaces {
  std::uint16_t words[32] = {};
  std::uint16_t shifts[32] = {};

  constexpr PairPlaces() {
    for (int i = 0; i < 16; ++i) {
      for (int row = 0; row < 2; ++row) {
        words[2 * i + row] = static_cast<std::uint16_t>(16 * row + i / 4);
        shifts[2 * i + row] = static_cast<std::uint16_t>(i / 2 % 2 * 8 + (1 - i % 2) * 4);
      }
    }
  }
};
inline constexpr PairPlaces kPairPlaces;

// Decodes the chunks of two rows to lanes of pairs, both rows at once.
class PairDecoder {
 public:
  PairDecoder() {}  // not defaulted: GCC would compile it without the target options

  // Pairs 16 * part ... 16 * part + 15 of the chunks.
  HWY_INLINE __m512i operator()(const RowPair& pair, int part) const {
    const __m512i from = _mm512_add_epi16(words_, _mm512_set1_epi16(static_cast<short>(4 * part)));
    const __m512i words = _mm512_srlv_epi16(_mm512_permutexvar_epi16(from, pair.packed), shifts_);
    // words & 0x0f | second_row
    const __m512i index = _mm512_ternarylogic_epi32(words, nibble_, second_row_, 0xea);
    return _mm512_permutexvar_epi16(index, pair.table);
  }

 private:
  const __m512i words_ = _mm512_load_si512(kPairPlaces.words);
  const __m512i shifts_ = _mm512_load_si512(kPairPlaces.shifts);
  const __m512i nibble_ = _mm512_set1_epi16(0x0f);
  const __m512i second_row_ = _mm512_set1_epi32(0x00100000);
};

// ---- In the order of words, for dot products, whose x is packed in this order: the four nibbles
// of a 16-bit word meet four vectors of x, columns 4 w + 1, 4 w, 4 w + 3 and 4 w + 2 of words w = 0
// ... 31.

// The values of 64 columns: the first and second vector, then the third and fourth.
struct alignas(64) WordColumns {
  std::uint16_t first[32] = {};
  std::uint16_t second[32] = {};

  constexpr WordColumns() {
    for (int word = 0; word < 16; ++word) {
      first[word] = static_cast<std::uint16_t>(4 * word + 1);
      first[word + 16] = static_cast<std::uint16_t>(4 * word);
      second[word] = static_cast<std::uint16_t>(4 * word + 3);
      second[word + 16] = static_cast<std::uint16_t>(4 * word + 2);
    }
  }
};
inline constexpr WordColumns kWordColumns;

// Two chunks of a row of the weight, or one and zeros.
HWY_INLINE __m512i LoadChunks(const std::uint8_t* packed, bool whole) {
  return whole ? _mm512_loadu_si512(packed) : _mm512_maskz_loadu_epi64(0x0f, packed);
}

// The four nibbles of every word of two chunks, looked up in `table` by their low five bits.
struct NibbleValues {
  __m512bh of[4];
};
HWY_INLINE NibbleValues LookUpNibbles(__m512i words, __m512i table) {
  const auto look_up = [&](__m512i index) __attribute__((always_inline)) {
    return (__m512bh)_mm512_permutexvar_epi16(index, table);
  };
  return {{look_up(words), look_up(_mm512_srli_epi16(words, 4)),
           look_up(_mm512_srli_epi16(words, 8)), look_up(_mm512_srli_epi16(words, 12))}};
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES

#endif  // QLORA_BACKEND_CPU_X86_BF16_FORMAT_INL_H_
