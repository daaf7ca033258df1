// Dot products of few rows of x with prepacked 4-bit weights, in pairs of bfloat16 (AVX512_BF16 and
// AVX512_VBMI).
#include <limits>

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16,avx512vbmi")
// With these target options.
#include "backend/cpu/x86/pair_values-inl.h"
#include "backend/cpu/x86/prepacked_dot-inl.h"

namespace qlora::cpu::bf16 {
namespace {

// Groups of 8 columns; in each, the rows one after the other.
void PackDotPrepacked(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<std::uint16_t*>(out);
  const __m512i order = PairValues::Order();
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
