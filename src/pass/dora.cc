#include "pass/dora.h"

#include <algorithm>

#include "base/matrix.h"

namespace qlora {
namespace {

// The first `cols` values of every row, packed.
MatrixView Packed(MatrixView m, std::int64_t cols) {
  m.cols = m.stride = cols;
  return m;
}

// The bias is added after the gain, by ScaleColumns.
LinearView WithoutBias(const LinearView& view) { return {view.weight, {}, view.lora}; }

// visit(frozen, lora) for every linear with a magnitude. RowNorms has its workspace meanwhile:
// norms are computed before anyone knows how large passes will be.
template <typename Visit>
void ForEachDora(Backend& backend, const DecoderWeights& weights, const LoraAdapter& adapter,
                 Visit&& visit) {
  if (!adapter.config().use_dora) return;
  BackendLimits limits;
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) {
      if (lora.is_dora()) limits.features = std::max(limits.features, lora.in);
    });
  }
  backend.Reserve(limits);
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    if (!weights.layers[l].is_here()) continue;
    ForEachPair(weights.layers[l].linears, adapter.layers()[l],
                [&](const FrozenLinear& frozen, const LoraLinear& lora) {
                  if (lora.is_dora()) visit(frozen, lora);
                });
  }
}

}  // namespace

// z and gain belong to one linear at a time. dz is as wide as a group, because one
// LinearBackward reads the gradients of all its linears.
DoraBuffers LayoutDora(Carver& carver, std::int64_t widest, std::int64_t widest_group,
                       const Precision& precision, std::int64_t rows) {
  DoraBuffers out;
  out.z = carver.Matrix(precision.wide, rows, widest);
  out.gain = carver.Matrix(precision.wide, 1, widest);
  if (widest_group == 0) return out;
  out.dz = carver.Matrix(precision.activation, rows, widest_group);
  out.dots = carver.Matrix(precision.wide, 1, widest);
  return out;
}

void ForwardDora(Backend& backend, std::span<const LinearView> views,
                 std::span<const LoraLinear> loras, const ConstMatrixView& x,
                 std::span<const LinearOutput> outputs, Store store, SumOrder order,
                 DoraBuffers& buffers) {
  for (const LinearOutput& out : outputs) {
    if (!out.base.empty()) backend.Run(ops::Copy{out.base, out.y});
  }
  for (std::size_t i = 0; i < views.size(); ++i) {
    // A group may have linears without a magnitude: the linears that are not adapted.
    if (!loras[i].is_dora()) {
      const LinearOutput out{outputs[i].y, outputs[i].u};
      backend.Run(ops::Linear{{&views[i], 1}, x, {&out, 1}, store, order});
      continue;
    }
    const LinearView without_bias = WithoutBias(views[i]);
    const MatrixView z = Packed(Rows(buffers.z, 0, x.rows), loras[i].out);
    const MatrixView gain = Columns(buffers.gain, 0, loras[i].out);
    const LinearOutput out{z, outputs[i].u};
    // z is rounded once, in the wide type, before the gain; y = z gain + bias rounds to the type of
    // y.
    backend.Run(ops::Linear{{&without_bias, 1}, x, {&out, 1}, Store::kSet, order});
    backend.Run(
        ops::ScaleColumns{loras[i].magnitude, loras[i].inverse_norm, {}, gain, Store::kSet});
    backend.Run(ops::ScaleColumns{z, gain, views[i].bias, outputs[i].y, store});
  }
}

void BackwardDora(Backend& backend, std::span<const LinearView> views,
                  std::span<const LoraLinear> loras, const ConstMatrixView& x,
                  std::span<const MatrixView> us, DoraBuffers& buffers,
                  std::vector<LinearGradient>& gradients) {
  // Column of dz at which the next linear of the group begins.
  std::int64_t place = 0;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const LoraLinear& lora = loras[i];
    if (!lora.is_dora()) continue;
    const LinearView without_bias = WithoutBias(views[i]);
    const MatrixView z = Packed(Rows(buffers.z, 0, x.rows), lora.out);
    const MatrixView dz = Columns(Rows(buffers.dz, 0, x.rows), place, lora.out);
    const MatrixView gain = Columns(buffers.gain, 0, lora.out);
    const MatrixView dots = Columns(buffers.dots, 0, lora.out);
    const LinearOutput again{z, us[i]};
    // z was scratch of the forward pass, so it is computed again. Dropout depends on its key alone
    // and drops the same elements. With y = gain z + bias, gain = magnitude / norm:
    //
    //   d_magnitude += colsum(dy z) / norm,   dz = gain dy
    backend.Run(ops::Linear{{&without_bias, 1}, x, {&again, 1}, Store::kSet});
    backend.Run(ops::ColumnDots{gradients[i].dy, z, dots});
    backend.Run(ops::ScaleColumns{dots, lora.inverse_norm, {}, lora.d_magnitude, Store::kAdd});
    backend.Run(ops::ScaleColumns{lora.magnitude, lora.inverse_norm, {}, gain, Store::kSet});
    backend.Run(ops::ScaleColumns{gradients[i].dy, gain, {}, dz, Store::kSet});
    gradients[i].dy = dz;
    place += lora.out;
  }
}

void RefreshNorms(Backend& backend, const DecoderWeights& weights, LoraAdapter& adapter) {
  ForEachDora(backend, weights, adapter, [&](const FrozenLinear& frozen, const LoraLinear& lora) {
    const LoraView view{lora.a, lora.b, lora.scale, 0, {}};
    // Without dropout: the norm belongs to the merged weight.
    backend.Run(ops::RowNorms{frozen.weight, view, {}, lora.inverse_norm});
  });
}

void InitializeMagnitudes(Backend& backend, const DecoderWeights& weights, LoraAdapter& adapter) {
  ForEachDora(backend, weights, adapter, [&](const FrozenLinear& frozen, const LoraLinear& lora) {
    backend.Run(ops::RowNorms{frozen.weight, {}, lora.magnitude, lora.inverse_norm});
  });
  RefreshNorms(backend, weights, adapter);
}

}  // namespace qlora
