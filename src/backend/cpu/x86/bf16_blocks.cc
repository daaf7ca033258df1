// Dot products of few rows of x with rows of ggml's blocks, in pairs of bfloat16 (AVX512_BF16).
// Codes are whole numbers that bfloat16 holds exactly; their products with x are summed over the
// values of one scale, and the sum is scaled.
#include "backend/cpu/gemm/block_scales.h"
#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"
#include "ggml/codebooks.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {
namespace {

// The values of codes of 4 bits, twice: vpermw reads five bits of an index, and bit 4 is stray.
struct alignas(64) NibbleTable {
  std::uint16_t values[32] = {};

  template <class ValueOf>
  constexpr explicit NibbleTable(const ValueOf& value_of) {
    for (int i = 0; i < 32; ++i) values[i] = Bits16(value_of(i % 16));
  }
  // Whole numbers of up to 8 bits need no rounding.
  static constexpr std::uint16_t Bits16(int value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >>
                                      16);
  }
};
constexpr NibbleTable kPlain([](int code) { return code; });
constexpr NibbleTable kQ4Table([](int code) { return code - 8; });
constexpr NibbleTable kIq4Table([](int code) { return int{kIq4Values[code]}; });
constexpr NibbleTable kE2m1Table([](int code) { return int{kE2m1Values[code]}; });

// The values of codes of 6 bits.
struct alignas(64) SixBitTable {
  std::uint16_t values[64] = {};

  constexpr SixBitTable() {
    for (int i = 0; i < 64; ++i) values[i] = NibbleTable::Bits16(i - 32);
  }
};
constexpr SixBitTable kSixBits;

HWY_INLINE __m256i Load32(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// 32 values of codes in the low nibbles of 16 bytes, then in the high ones.
HWY_INLINE __m512bh NibblesOf16(const std::byte* at, const NibbleTable& table) {
  const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  const __m512i index =
      _mm512_inserti64x4(_mm512_castsi256_si512(words), _mm256_srli_epi16(words, 4), 1);
  return (__m512bh)_mm512_permutexvar_epi16(index, _mm512_load_si512(table.values));
}

// How 32 values, those of part `part` of a block, become bfloat16.
template <BlockFormat kFormat>
HWY_INLINE __m512bh CodesOf(const std::byte* codes, int part) {
  if constexpr (kFormat == BlockFormat::kQ4_0) {
    return NibblesOf16(codes, kQ4Table);
  } else if constexpr (kFormat == BlockFormat::kIQ4_NL) {
    return NibblesOf16(codes, kIq4Table);
  } else if constexpr (kFormat == BlockFormat::kMXFP4) {
    return NibblesOf16(codes, kE2m1Table);
  } else if constexpr (kFormat == BlockFormat::kQ8_0) {
    const __m256i bytes = Load32(codes);
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
    const __m512 high =
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
    return _mm512_cvtne2ps_pbh(high, low);
  } else if constexpr (kFormat == BlockFormat::kQ4_K) {
    // The low nibbles of 32 bytes are a part, and the high ones the next.
    const __m512i words = _mm512_cvtepu8_epi16(Load32(codes + part / 2 * 32));
    return (__m512bh)_mm512_permutexvar_epi16(part % 2 == 0 ? words : _mm512_srli_epi16(words, 4),
                                              _mm512_load_si512(kPlain.values));
  } else {
    static_assert(kFormat == BlockFormat::kQ6_K);
    // Of each half of 128 values: nibbles of 64 bytes, the low ones first; two bits of 32 bytes.
    const int half = part / 4;
    const int row = part % 4;
    const __m256i nibbles = Load32(codes + 64 * half + row % 2 * 32);
    const __m256i bits = Load32(codes + 128 + 32 * half);
    const __m256i low =
        _mm256_and_si256(row < 2 ? nibbles : _mm256_srli_epi16(nibbles, 4), _mm256_set1_epi8(0x0f));
    const __m256i shifted = row == 0   ? _mm256_slli_epi16(bits, 4)
                            : row == 1 ? _mm256_slli_epi16(bits, 2)
                            : row == 2 ? bits
                                       : _mm256_srli_epi16(bits, 2);
    const __m256i high = _mm256_and_si256(shifted, _mm256_set1_epi8(0x30));
    const __m512i index = _mm512_cvtepu8_epi16(_mm256_or_si256(low, high));
    return (__m512bh)_mm512_permutex2var_epi16(_mm512_load_si512(kSixBits.values), index,
                                               _mm512_load_si512(kSixBits.values + 32));
  }
}

template <BlockFormat kFormat, int kCount>
void DotBlocksWith(const BlockView& blocks, const DotProduct& p) {
  using Scales = BlockScales<kFormat>;
  constexpr int kParts = Scales::kValues / 32;
  constexpr Index kAhead = 4096;  // bytes
  // Independent sums: a multiply-add takes four cycles, two start in each.
  constexpr int kSums = kCount <= 2 ? 4 : kCount <= 4 ? 2 : 1;
  const auto ones = (__m512bh)_mm512_set1_epi16(NibbleTable::Bits16(1));
  const Index count = p.k / Scales::kValues;
  const std::byte* block = blocks.data;
  for (Index r = 0; r < p.rows; ++r) {
    const auto* x = static_cast<const std::uint16_t*>(p.x);
    __m512 sum[kCount][kSums];
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
      for (int s = 0; s < kSums; ++s) sum[m][s] = _mm512_setzero_ps();
    }
    for (Index b = 0; b < count; ++b, block += Scales::kBytes) {
      for (int line = 0; line < Scales::kBytes; line += 64) {
        _mm_prefetch(block + kAhead + line, _MM_HINT_T0);
      }
      alignas(64) float scales[16];
      alignas(64) float mins[16];
      Scales::Load(block, scales, mins);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        const __m512bh codes = CodesOf<kFormat>(block + Scales::kCodes, part);
        __m512 scale;
        if constexpr (Scales::kPerScale == 32) {
          scale = _mm512_set1_ps(scales[part]);
        } else {
          scale = _mm512_mask_broadcastss_ps(_mm512_set1_ps(scales[2 * part]), 0xff00,
                                             _mm_load_ss(scales + 2 * part + 1));
        }
        // x: groups of 64 columns, in each the rows one after the other.
        const Index at = b * kParts + part;
        const std::uint16_t* values = x + at / 2 * 64 * kCount + at % 2 * 32;
#pragma GCC unroll 8
        for (int m = 0; m < kCount; ++m) {
          const auto row = (__m512bh)_mm512_loadu_si512(values + 64 * m);
          const __m512 products = _mm512_dpbf16_ps(_mm512_setzero_ps(), codes, row);
          __m512& to = sum[m][2 * part % kSums];
          to = _mm512_fmadd_ps(products, scale, to);
          if constexpr (Scales::kHasMins) {
            const __m512 total = _mm512_dpbf16_ps(_mm512_setzero_ps(), ones, row);
            __m512& less = sum[m][(2 * part + 1) % kSums];
            less = _mm512_fnmadd_ps(total, _mm512_set1_ps(mins[part]), less);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      __m512 total = sum[m][0];
#pragma GCC unroll 4
      for (int s = 1; s < kSums; ++s) total = _mm512_add_ps(total, sum[m][s]);
      p.out[m * p.out_stride + r] = _mm512_reduce_add_ps(total);
    }
  }
}

template <BlockFormat kFormat>
void DotBlocksIn(const BlockView& blocks, const DotProduct& p) {
  static constexpr auto kTable =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotBlocksWith<kFormat, kCount>; });
  kTable[p.count - 1](blocks, p);
}

}  // namespace

DotBlocks DotBlocksOf(BlockFormat format) {
  return KernelForBlocks(format,
                         []<BlockFormat kFormat>() -> DotBlocks { return DotBlocksIn<kFormat>; });
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
