// The table of float32 kernels, and packing, for every target of Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_f32.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_prepacked.h"
// Once per target.
#include "backend/cpu/f32_operands-inl.h"
#include "backend/cpu/kernels_f32_decoded-inl.h"
#include "backend/cpu/kernels_f32_dot-inl.h"
#include "backend/cpu/kernels_f32_tile-inl.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

template <bool kRound>
void PackRows(const ConstMatrixView& in, float scale, void* out, std::int64_t stride) {
  for (std::size_t r = 0; r < static_cast<std::size_t>(in.rows); ++r) {
    const void* row = RowOf(in, r);
    auto* to = static_cast<float*>(out) + r * static_cast<std::size_t>(stride);
    ForEachVector(static_cast<std::size_t>(in.cols), [&](auto d, std::size_t i) HWY_ATTR {
      const auto value = hn::Mul(LoadAs(d, row, in.dtype, i), hn::Set(d, scale));
      hn::StoreU(Operand<kRound>(d, value), d, to + i);
    });
  }
}

template <bool kRound>
void PackPanelOfRows(const ConstMatrixView& in, void* panel, std::int64_t width) {
  const FloatTag d;
  const auto rows = static_cast<std::size_t>(in.rows);
  const auto k = static_cast<std::size_t>(in.cols);
  const auto stride = static_cast<std::size_t>(width);
  for (std::size_t lane = 0; lane < stride; lane += 4) {
    auto* to = static_cast<float*>(panel) + lane;
    std::size_t i = 0;
    for (; i + kLanes <= k; i += kLanes) {
      hn::Vec<FloatTag> v[4];
      for (std::size_t j = 0; j < 4; ++j) {
        v[j] = lane + j < rows ? LoadOperand<kRound>(d, RowOf(in, lane + j), in.dtype, i)
                               : hn::Zero(d);
      }
      StoreColumns(v, to + i * stride, stride);
    }
    const hn::CappedTag<float, 1> d1;
    for (; i < k; ++i) {
      for (std::size_t j = 0; j < 4; ++j) {
        to[i * stride + j] =
            lane + j < rows ? hn::GetLane(LoadOperand<kRound>(d1, RowOf(in, lane + j), in.dtype, i))
                            : 0.0f;
      }
    }
  }
}

template <bool kRound>
void PackRowsTransposed(const ConstMatrixView& in, void* out, std::int64_t stride) {
  const auto rows = static_cast<std::size_t>(in.rows);
  for (std::size_t i = 0; i < rows; ++i) {
    const void* row = RowOf(in, i);
    auto* to = static_cast<float*>(out) + i;
    ForEachVector(static_cast<std::size_t>(in.cols), [&](auto tag, std::size_t r) HWY_ATTR {
      HWY_ALIGN float lanes[kLanes];
      hn::StoreU(LoadOperand<kRound>(tag, row, in.dtype, r), tag, lanes);
      for (std::size_t j = 0; j < hn::Lanes(tag); ++j) {
        to[(r + j) * static_cast<std::size_t>(stride)] = lanes[j];
      }
    });
  }
}

template <bool kRound>
void PackPanelOfColumns(const ConstMatrixView& in, void* panel, std::int64_t width) {
  const auto lanes = static_cast<std::size_t>(in.cols);
  for (std::size_t k = 0; k < static_cast<std::size_t>(in.rows); ++k) {
    const void* row = RowOf(in, k);
    auto* to = static_cast<float*>(panel) + k * static_cast<std::size_t>(width);
    ForEachVector(lanes, [&](auto d, std::size_t i) HWY_ATTR {
      hn::StoreU(LoadOperand<kRound>(d, row, in.dtype, i), d, to + i);
    });
    std::fill(to + lanes, to + width, 0.0f);
  }
}

// kPrepacked: whether there are kernels for prepacked weights.
template <bool kRound, bool kPrepacked>
constexpr Kernels kTable = {
    .name = kName,
    .panel = kPanel,
    .vector = std::max<std::size_t>(kLanes, 4),
    .step = 1,
    .bytes = 4,
    .reads_float_rows = !kRound,
    .most_dot_rows = 3 * kDotBatch,
    .most_prepacked_rows = kPrepacked ? 8 * kPrepackedFloatBatch : 0,
    .fewest_repacked_rows = kPrepacked ? 4 : std::numeric_limits<std::int64_t>::max(),
    .prepacked_batch = kPrepackedFloatBatch,
    .multiply = Multiply,
    .pack_rows = PackRows<kRound>,
    .pack_rows_transposed = PackRowsTransposed<kRound>,
    .pack_panel_of_rows = PackPanelOfRows<kRound>,
    .pack_panel_of_columns = PackPanelOfColumns<kRound>,
    .decode_rows = DecodeRows<kRound>,
    .multiply_chunks = MultiplyChunks<kRound>,
    .multiply_decoded_panels = MultiplyDecodedPanels<kRound>,
    .pack_dot_rows = PackDotRows<kRound>,
    .dot_rows = DotRows,
    .pack_dot_chunks = PackDotChunks<kRound>,
    .dot_chunks = DotChunks,
    .pack_dot_prepacked = PackDotPrepacked<kRound>,
    .dot_prepacked = DotPrepacked,
    .unpack_panel = UnpackPanel,
};

template <bool kPrepacked>
const Kernels* TableFor(bool round) {
  return round ? &kTable<true, kPrepacked> : &kTable<false, kPrepacked>;
}

}  // namespace

const Kernels* TableOfTarget(bool round) {
  if constexpr (HWY_TARGET == HWY_AVX3) {
    if (HasVbmi()) return TableFor<true>(round);
  }
  return TableFor<false>(round);
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(TableOfTarget);
const Kernels& FloatKernels(bool round) { return *HWY_DYNAMIC_DISPATCH(TableOfTarget)(round); }

}  // namespace qlora::cpu
#endif  // HWY_ONCE
