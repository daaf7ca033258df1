// The tables of float32 kernels, for every target of Highway, and the choice among all tables.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm/kernels.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>

#include "backend/cpu/gemm/kernels.h"
// Once per target.
#include "backend/cpu/gemm/f32_blocks-inl.h"
#include "backend/cpu/gemm/f32_decoded-inl.h"
#include "backend/cpu/gemm/f32_dot-inl.h"
#include "backend/cpu/gemm/f32_pack-inl.h"
#include "backend/cpu/gemm/f32_tile-inl.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

template <bool kRound>
Kernels MakeTable() {
  return {
      .panel = kPanel,
      .vector = std::max<std::int64_t>(kLanes, 4),
      .step = 1,
      .bytes = 4,
      .reads_float_rows = !kRound,
      .multiply = Multiply,
      .pack_rows = PackRows<kRound>,
      .pack_rows_transposed = PackRowsTransposed<kRound>,
      .pack_panel_of_rows = PackPanelOfRows<kRound>,
      .pack_panel_of_columns = PackPanelOfColumns<kRound>,
      .decode_rows = DecodeRows<kRound>,
      .multiply_chunks = nullptr,
      .multiply_decoded_panels = MultiplyDecodedPanels<kRound>,
      .pack_dot_rows = PackDotRows<kRound>,
      .dot_rows = DotRows,
      .of_blocks = KernelsOf<kRound>,
      .pack_dot_blocks = PackDotRows<kRound>,
      .pack_dot_chunks = PackDotChunks<kRound>,
      .dot_chunks = DotChunks,
      .prepacked = HWY_TARGET == HWY_AVX3 ? FloatPrepackedKernels(kRound) : nullptr,
  };
}

}  // namespace

const Kernels* TableOfTarget(bool round) {
  static const Kernels kExact = MakeTable<false>();
  static const Kernels kRounded = MakeTable<true>();
  return round ? &kRounded : &kExact;
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(TableOfTarget);
const Kernels& FloatKernels(bool round) { return *HWY_DYNAMIC_DISPATCH(TableOfTarget)(round); }

const Kernels& SelectKernels(DType compute) {
  const bool round = compute == DType::kBF16;
  // Products of pairs of bfloat16 where the processor has them. Elsewhere operands are rounded to
  // bfloat16 and multiplied as float32: products of two bfloat16 are exact in float32, so only the
  // order of the sums differs.
  const Kernels* bfloat16 = round ? Bfloat16Kernels() : nullptr;
  return bfloat16 != nullptr ? *bfloat16 : FloatKernels(round);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
