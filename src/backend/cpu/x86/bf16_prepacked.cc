// Dot products of few rows of x with prepacked 4-bit weights, in pairs of bfloat16 (AVX512_BF16 and
// AVX512_VBMI). Values are rounded to bfloat16 before they are scaled instead of afterwards: the
// same relative error.
#include <limits>

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16,avx512vbmi")
// With these target options.
#include "backend/cpu/x86/prepacked_dot-inl.h"

namespace qlora::cpu::bf16 {
namespace {

// Pairs of columns: nibble `step` of both halves of a word of 32 bits.
struct PairValues {
  static constexpr int kSteps = 4;
  static constexpr int kMost = 12;

  HWY_INLINE explicit PairValues(const float* code)
      // Twice, because bit 4 of an index means nothing.
      : table(_mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(code)))) {}
  static HWY_INLINE __m512i Load(const std::byte* at, int) { return _mm512_load_si512(at); }
  HWY_INLINE __m512bh Lookup(__m512i words, int step) const {
    return (__m512bh)_mm512_permutexvar_epi16(
        _mm512_srli_epi16(words, static_cast<unsigned>(4 * step)), table);
  }
  static HWY_INLINE __m512 MulAdd(__m512 sum, __m512bh values, const float* x) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return _mm512_dpbf16_ps(sum, values, (__m512bh)_mm512_set1_epi32(pair));
  }

  __m512i table;
};

constexpr long long kEights = 0x0008000800080008;  // 8 in every word

// Groups of 8 columns; in each, the rows one after the other, with columns 1, 5, 0, 4, 3, 7, 2, 6:
// nibble n of both halves of a word of 32 bits, for n = 0 ... 3.
void PackDotPrepacked(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<std::uint16_t*>(out);
  const __m512i order =
      _mm512_add_epi16(_mm512_broadcast_i32x4(_mm_setr_epi16(1, 5, 0, 4, 3, 7, 2, 6)),
                       _mm512_setr_epi64(0, 0, kEights, kEights, 2 * kEights, 2 * kEights,
                                         3 * kEights, 3 * kEights));
  const auto store = [&](Index group, Index m, __m128i columns) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8 * (group * in.rows + m)), columns);
  };
  for (Index k = 0; k < in.cols; k += 32, to += 32 * in.rows) {
    for (Index m = 0; m < in.rows; ++m) {
      const __m512i columns = _mm512_permutexvar_epi16(order, LoadBits32(in, m, k));
      store(0, m, _mm512_castsi512_si128(columns));
      store(1, m, _mm512_extracti32x4_epi32(columns, 1));
      store(2, m, _mm512_extracti32x4_epi32(columns, 2));
      store(3, m, _mm512_extracti32x4_epi32(columns, 3));
    }
  }
}

}  // namespace
}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES

namespace qlora::cpu::bf16 {

const PrepackedKernels* Prepacked() {
  const PrepackedKernels* in_float32 = FloatPrepackedKernels(true);
  if (in_float32 == nullptr) return nullptr;
  static const PrepackedKernels kTable = [&] {
    PrepackedKernels table = *in_float32;  // the order of weights is the same
    table.batch = PairValues::kMost;
    table.fewest_repacked_rows = std::numeric_limits<std::int64_t>::max();
    table.pack_x = PackDotPrepacked;
    table.dot = DotPanelsOf<PairValues>;
    return table;
  }();
  return &kTable;
}

}  // namespace qlora::cpu::bf16
