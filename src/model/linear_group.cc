// Linears that share an input, with their adapters: plain LoRA is one op, DoRA scales the columns
// of its result. Derivation: docs/math/dora.md.
#include <algorithm>
#include <cmath>

#include "base/matrix.h"
#include "model/decoder.h"
#include "model/pass.h"

namespace qlora {
namespace {

// The first `cols` values of every row, packed.
MatrixView Narrow(MatrixView m, std::int64_t cols) {
  m.cols = m.stride = cols;
  return m;
}

}  // namespace

// y = [y +] gain z + bias,  z = x (W + scale B A)^T,  gain = magnitude / norm
void Decoder::ForwardGroup(LinearGroup group, const Pass& pass, std::int64_t layer,
                           ConstMatrixView x, std::span<const LinearOutput> outputs, Store store,
                           const Activations& shared) const {
  if (observer_) observer_(layer, group, x);
  const std::vector<LinearView> views = BindGroup(group, pass, layer);
  const std::span<LoraLinear* const> loras = GroupOf(loras_[layer], group);
  if (adapter_ == nullptr || !adapter_->config().use_dora) {
    backend_.Run(ops::Linear{views, x, outputs, store});
    return;
  }
  for (std::size_t l = 0; l < views.size(); ++l) {
    if (!loras[l]->is_dora()) {
      backend_.Run(ops::Linear{{&views[l], 1}, x, {&outputs[l], 1}, store});
      continue;
    }
    const LinearView without_bias{views[l].weight, {}, views[l].lora};
    const MatrixView z = Narrow(Rows(shared.dora_z, 0, x.rows), loras[l]->out);
    const MatrixView gain = Columns(shared.dora_gain, 0, loras[l]->out);
    const LinearOutput out{z, outputs[l].u};
    backend_.Run(ops::Linear{{&without_bias, 1}, x, {&out, 1}, Store::kSet});
    backend_.Run(
        ops::ScaleColumns{loras[l]->magnitude, loras[l]->inverse_norm, {}, gain, Store::kSet});
    backend_.Run(ops::ScaleColumns{z, gain, views[l].bias, outputs[l].y, store});
  }
}

// d_magnitude += (sum over the rows of dy z) / norm;  dz = gain dy.  The norm counts as a constant.
void Decoder::BackwardGroup(LinearGroup group, const Pass& pass, std::int64_t layer,
                            ConstMatrixView x, std::span<const LinearGradient> gradients,
                            std::span<const MatrixView> us, MatrixView dx,
                            const Activations& shared) const {
  const std::vector<LinearView> views = BindGroup(group, pass, layer);
  const std::span<LoraLinear* const> loras = GroupOf(loras_[layer], group);
  if (adapter_ == nullptr || !adapter_->config().use_dora) {
    backend_.Run(ops::LinearBackward{views, x, gradients, dx, Store::kSet});
    return;
  }
  std::vector<LinearGradient> of_z(gradients.begin(), gradients.end());
  std::int64_t place = 0;
  for (std::size_t l = 0; l < views.size(); ++l) {
    if (!loras[l]->is_dora()) continue;
    LoraLinear& lora = *loras[l];
    const LinearView without_bias{views[l].weight, {}, views[l].lora};
    const MatrixView z = Narrow(Rows(shared.dora_z, 0, x.rows), lora.out);
    const MatrixView dz = Columns(Rows(shared.dora_dz, 0, x.rows), place, lora.out);
    const MatrixView gain = Columns(shared.dora_gain, 0, lora.out);
    const MatrixView dots = Columns(shared.dora_dots, 0, lora.out);
    const LinearOutput again{z, us[l]};
    backend_.Run(ops::Linear{{&without_bias, 1}, x, {&again, 1}, Store::kSet});
    backend_.Run(ops::ColumnDots{gradients[l].dy, z, dots});
    backend_.Run(ops::ScaleColumns{dots, lora.inverse_norm, {}, lora.d_magnitude, Store::kAdd});
    backend_.Run(ops::ScaleColumns{lora.magnitude, lora.inverse_norm, {}, gain, Store::kSet});
    backend_.Run(ops::ScaleColumns{gradients[l].dy, gain, {}, dz, Store::kSet});
    of_z[l].dy = dz;
    place += lora.out;
  }
  backend_.Run(ops::LinearBackward{views, x, of_z, dx, Store::kSet});
}

void Decoder::RefreshNorms() const {
  if (adapter_ == nullptr || !adapter_->config().use_dora) return;
  for (std::size_t l = 0; l < weights_.layers.size(); ++l) {
    Combine(weights_.layers[l].linears, adapter_->layers()[l],
            [&](const FrozenLinear& frozen, const LoraLinear& lora) {
              if (!lora.is_dora()) return 0;
              const LoraView view{lora.a, lora.b, lora.scale, 0, {}};
              backend_.Run(ops::RowNorms{frozen.weight, view, {}, lora.inverse_norm});
              return 0;
            });
  }
}

void Decoder::InitializeMagnitudes() const {
  if (adapter_ == nullptr || !adapter_->config().use_dora) return;
  for (std::size_t l = 0; l < weights_.layers.size(); ++l) {
    Combine(weights_.layers[l].linears, adapter_->layers()[l],
            [&](const FrozenLinear& frozen, const LoraLinear& lora) {
              if (!lora.is_dora()) return 0;
              backend_.Run(ops::RowNorms{frozen.weight, {}, lora.magnitude, lora.inverse_norm});
              return 0;
            });
  }
  RefreshNorms();
}

void Decoder::AddEmbeddingNoise(const Batch& batch, const Pass& pass,
                                Activations& activations) const {
  const DropoutState& state = pass.dropout;
  if (!state.enabled || state.neftune_alpha == 0) return;
  std::vector<float> magnitudes(pass.rows);
  for (std::size_t s = 0; s + 1 < batch.sequence_begin.size(); ++s) {
    const std::int64_t begin = batch.sequence_begin[s];
    const std::int64_t end = batch.sequence_begin[s + 1];
    const auto values = static_cast<double>((end - begin) * config_.hidden_size);
    std::fill(magnitudes.begin() + begin, magnitudes.begin() + end,
              static_cast<float>(state.neftune_alpha / std::sqrt(values)));
  }
  ConvertToWide(magnitudes.data(), DType::kF32, 0, activations.noise);
  backend_.Run(ops::AddNoise{MakeKey(state.seed, RandomPlace::kNeftune, state.micro_step),
                             activations.noise, activations.layers[0].x_in});
}

}  // namespace qlora
