#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8/coded_product.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/int8/coded_product.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// sums(r, lane) = fma(x[lane], w[r], sums(r, lane)) where `lanes` has the bit of the lane.
void AddColumn(const float* w, std::int64_t rows, const float* x, std::uint32_t lanes,
               std::int64_t width, float* sums, std::int64_t stride) {
  // Single lanes; and Highway has no fused operation for scalar targets.
  if (HWY_TARGET == HWY_SCALAR || width == 1) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < width; ++i) {
        float& sum = sums[r * stride + i];
        if ((lanes >> i & 1) != 0) sum = std::fma(x[i], w[r], sum);
      }
    }
    return;
  }
  const FloatTag d;
  float chosen[kInt8Lanes];
  for (std::int64_t i = 0; i < width; ++i) chosen[i] = static_cast<float>(lanes >> i & 1);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = sums + r * stride;
    for (std::int64_t i = 0; i < width; i += kLanes) {
      const auto before = hn::LoadU(d, row + i);
      const auto after = hn::MulAdd(hn::LoadU(d, x + i), hn::Set(d, w[r]), before);
      const auto has = hn::Ne(hn::LoadU(d, chosen + i), hn::Zero(d));
      hn::StoreU(hn::IfThenElse(has, after, before), d, row + i);
    }
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(AddColumn);

namespace {

float ValueAt(const ConstMatrixView& m, std::int64_t row, std::int64_t col) {
  return m.dtype == DType::kBF16 ? ToFloat(m.Row<BFloat16>(row)[col]) : m.Row<float>(row)[col];
}

// The sums of an operand with all panels, which are next to one another.
struct CodedSums {
  const CodedOperand& operand;
  const CodedPanels& panels;
  const ConstMatrixView& values;
  float* sums;
  std::int64_t stride;

  // sums += w x, for the lanes of a panel.
  void Add(const CodedPanel& panel, std::int64_t k, std::int64_t row, std::span<const float> w,
           std::uint32_t lanes) const {
    float x[kInt8Lanes] = {};
    for (std::int64_t i = 0; i < panel.rows; ++i) {
      if ((lanes >> i & 1) != 0) x[i] = ValueAt(values, panel.row + i, k);
    }
    HWY_DYNAMIC_DISPATCH(AddColumn)
    (w.data(), std::ssize(w), x, lanes, panel.width, sums + row * stride + panel.lane, stride);
  }

  // Column by column, of which the values serve all panels.
  void AddSpikes() const {
    std::vector<std::int32_t> next(panels.count());
    std::vector<float> column(operand.rows());
    while (true) {
      std::int32_t k = std::numeric_limits<std::int32_t>::max();
      for (std::int64_t p = 0; p < panels.count(); ++p) {
        if (next[p] < *panels[p].spike_count) k = std::min(k, panels[p].spikes[next[p]].column);
      }
      if (k == std::numeric_limits<std::int32_t>::max()) return;
      operand.Values(k, column.data());
      for (std::int64_t p = 0; p < panels.count(); ++p) {
        const CodedPanel panel = panels[p];
        if (next[p] == *panel.spike_count || panel.spikes[next[p]].column != k) continue;
        Add(panel, k, 0, column, panel.spikes[next[p]++].lanes);
      }
    }
  }

  // Of lanes that have no spike there.
  void AddExcess() const {
    operand.ForEachExcess([this](std::int64_t k, std::int64_t row, float excess) {
      for (std::int64_t p = 0; p < panels.count(); ++p) {
        const CodedPanel panel = panels[p];
        const std::span<const SpikeColumn> spikes(panel.spikes, *panel.spike_count);
        const auto spike = std::ranges::lower_bound(spikes, k, {}, &SpikeColumn::column);
        const bool has = spike != spikes.end() && spike->column == k;
        const std::uint32_t all = ~std::uint32_t{0} >> (kInt8Lanes - panel.rows);
        Add(panel, k, row, {&excess, 1}, has ? all & ~spike->lanes : all);
      }
    });
  }
};

// What stays in float32.
void AddFloats(const CodedSums& sums) {
  sums.AddSpikes();
  sums.AddExcess();
}

}  // namespace

void MultiplyCodedRows(const Int8Kernels& kernels, const CodedRows& rows, const CodedPanels& panels,
                       const ConstMatrixView& values, std::uint8_t* room, float* sums,
                       std::int64_t stride) {
  if (!panels.are_single()) {
    return MultiplyCoded(kernels, rows, panels, values, room, sums, stride);
  }
  rows.Multiply(kernels, panels, room, sums, stride);
  AddFloats({rows, panels, values, sums, stride});
}

void MultiplyCoded(const Int8Kernels& kernels, const CodedOperand& operand,
                   const CodedPanels& panels, const ConstMatrixView& values, std::uint8_t* room,
                   float* sums, std::int64_t stride) {
  if (kernels.begin != nullptr) kernels.begin();
  for (std::int64_t k = 0; k < operand.k(); k += kCodedDepth) {
    const std::int64_t depth = std::min(kCodedDepth, operand.k() - k);
    operand.Pack(k, depth, kernels, room);
    const CacheLines next = operand.LinesOf(k + depth);
    for (std::int64_t p = 0; p < panels.count(); ++p) {
      const CodedPanel panel = panels[p];
      const std::int64_t group = k / int8::kGroup * panel.width;
      kernels.multiply({.rows = operand.rows(),
                        .k = RoundUp(depth, kInt8Depth),
                        .width = panel.width,
                        .a = room,
                        .quads = operand.HasQuads(kernels),
                        .panel = panel.codes + k * panel.width,
                        .scales = panel.scales + group,
                        .starts = panel.starts + group,
                        .c = sums + panel.lane,
                        .c_stride = stride,
                        .add = k > 0,
                        .factors = k + depth == operand.k() ? operand.factors() : nullptr,
                        .fetch_codes = panels.CodesBehind(p, k, depth),
                        .fetch_weight = next.Part(p, p + 1, panels.count())});
    }
  }
  if (kernels.end != nullptr) kernels.end();
  AddFloats({operand, panels, values, sums, stride});
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
