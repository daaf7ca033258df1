#include "pass/activations.h"

#include <algorithm>

#include "base/check.h"
#include "base/matrix.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

// Carves the buffers of one pass. The order of the calls is the order in memory, the same for
// planning and for the pass itself. Letters as in ops.h.
class Layout {
 public:
  Layout(Carver& carver, const DecoderConfig& config, const Precision& precision,
         const ActivationShape& shape)
      : carver_(carver), c_(config), precision_(precision), shape_(shape), n_(shape.rows) {}
  // The same pass, in another carver.
  Layout(const Layout& other, Carver& carver)
      : Layout(carver, other.c_, other.precision_, other.shape_) {}

  MatrixView Act(std::int64_t cols) { return carver_.Matrix(precision_.activation, n_, cols); }
  MatrixView Wide(std::int64_t rows, std::int64_t cols) {
    return carver_.Matrix(precision_.wide, rows, cols);
  }
  // A residual stream.
  MatrixView Stream() { return Wide(n_, c_.hidden_size); }

  // Room for the rows of this layout: the number of head rows and targets is at most N.
  void Inputs(InputBuffers& out) {
    const std::int64_t per_layer = c_.per_layer_size > 0 ? 1 : 0;
    out.indices = carver_.Matrix(DType::kI32, 3 + std::ssize(c_.ropes) + per_layer, n_);
    if (shape_.unfolded > 0) out.unfolded = carver_.Matrix(DType::kI32, 2, shape_.unfolded);
    if (!shape_.training) return;
    out.row_scale = Wide(1, n_);
    out.noise = Wide(1, n_);
  }

  // Buffers of the backward pass that all layers share. d_norm is added to by the router and by
  // experts, and is wide there, because sums are not rounded to the activation type on the way.
  void Gradients(Activations& out) {
    out.dx = Stream();
    out.d_norm = c_.experts().num_experts > 0 ? Stream() : Act(c_.hidden_size);
  }

  // The head works on a chunk of rows at a time: logits of all rows would be the largest matrix of
  // a pass. row_stats are kept for all rows.
  void Head(Activations& out) {
    const std::int64_t rows = shape_.head_rows;
    out.head_x = Wide(rows, c_.hidden_size);
    out.head_norm = carver_.Matrix(precision_.activation, rows, c_.hidden_size);
    out.head_rstd = Wide(1, rows);
    if (shape_.training) out.head_dx = Wide(rows, c_.hidden_size);
    out.logits = Wide(rows, c_.vocab_size);
    out.row_stats = Wide(4, n_);
    out.sums = carver_.Matrix(DType::kF64, 1, 2);
  }

 protected:
  Carver& carver_;
  const DecoderConfig& c_;
  const Precision& precision_;
  const ActivationShape& shape_;
  std::int64_t n_;
};

// Carves the buffers of one layer.
class LayerLayout : public Layout {
 public:
  LayerLayout(const Layout& layout, Carver& carver, std::int64_t layer)
      : Layout(layout, carver), l_(layer) {}

  // Keys and values that other layers read.
  void SharedKv(LayerActivations& a) {
    LayerCarver c = CarverOf(carver_);
    AttentionMixer::LayoutShared(c, std::get<AttentionMixer::Activations>(a.mixer));
  }

  // Steps 1 to 6 of a layer, without x_in and x_mid.
  void MixerPart(LayerActivations& a) {
    LayerCarver c = CarverOf(carver_);
    a.mixer_rstd = Wide(1, n_);
    LayerMixer::Layout(c, a.mixer);
  }

  // Steps 7 to 13, without the residual stream.
  void MlpPart(LayerActivations& a) {
    LayerCarver c = CarverOf(carver_);
    a.mlp_rstd = Wide(1, n_);
    LayerMlp::Layout(c, a.mlp);
    PerLayerBlock::Layout(c, a.per_layer);
  }

  // Large enough for each of the adapters. Experts share a place, of which each writes other rows,
  // so that the largest rank is enough.
  void Lora(const AdapterSizes& adapters, PerLinear<MatrixView>& u) {
    for (const AdapterSizes::Place& it : adapters.layers[l_]) {
      const std::int64_t rows = it.of_experts ? n_ * c_.experts().num_experts_per_tok : n_;
      Append(u, it.group, it.rank > 0 ? Wide(rows, it.rank) : MatrixView{});
    }
  }

  // The scratch of a mixer and that of the blocks behind it never live at the same time. That of
  // attention lies beside theirs, and shares the gradient of the last linear's input.
  void Scratch(LayerActivations& a) {
    Carver begin = carver_;
    LayerCarver c = CarverOf(carver_);
    PerLayerBlock::LayoutScratch(c, a.per_layer);
    LayerMlp::LayoutScratch(c, a.mlp);
    if (std::holds_alternative<AttentionMixer::Activations>(a.mixer)) {
      LayerMixer::LayoutScratch(c, a.mixer);
    } else {
      LayerCarver over = CarverOf(begin);
      LayerMixer::LayoutScratch(over, a.mixer);
      carver_.GoBehind(begin);
    }
  }

 private:
  LayerCarver CarverOf(Carver& carver) const {
    return LayerCarver(carver, c_, precision_, l_, n_, shape_.training, shape_.unfolded);
  }

  std::int64_t l_;
};

}  // namespace

AdapterSizes::AdapterSizes(const DecoderConfig& config, const Adapters& adapters)
    : layers(config.num_hidden_layers) {
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    for (const LayerTensor& row : LayerTensors(config, l)) {
      if (row.kind != TensorKind::kLinear) continue;
      std::int64_t rank = 0;
      for (const LoraAdapter* adapter : adapters) {
        for (const LoraLinear* lora : StackOf(adapter->layers()[l], row)) {
          rank = std::max(rank, lora->rank);
        }
      }
      layers[l].push_back({row.group, row.experts > 0, rank});
      trains_per_layer |= row.group == LinearGroup::kPerLayerModel && rank > 0;
    }
  }
  for (const LoraAdapter* adapter : adapters) {
    trains_per_layer |= adapter->embedding() != nullptr;
    if (!adapter->config().use_dora) continue;
    dora_linear = WidestLinear(config);
    dora_group = WidestGroup(config);
  }
}

bool AdapterSizes::Holds(const AdapterSizes& other) const {
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (std::size_t i = 0; i < layers[l].size(); ++i) {
      if (other.layers[l][i].rank > layers[l][i].rank) return false;
    }
  }
  return other.dora_linear <= dora_linear && other.dora_group <= dora_group;
}

std::int64_t HeadRows(const DecoderConfig& config, std::int64_t rows) {
  if (!config.has_head()) return 0;
  constexpr std::int64_t kLogits = std::int64_t{8} << 20;
  return std::min(rows, std::max<std::int64_t>(64, kLogits / config.vocab_size / 64 * 64));
}

// ---- The layout of a pass.

// Which buffers a layer has to itself, and which it shares with all layers that recompute the part:
//
//                x_in               mixer, x_mid       MLP
//   kNone        own                own                own
//   kAttention   own                shared             own
//   kMlp         own                own                shared
//   kLayer       own                shared             shared
//   evaluation   one residual       shared             shared
//                stream for all
//
// Adapters are small, so in training every layer keeps its own u, at every level; in evaluation all
// share one. All layers share the scratch.
// Keys and values that other layers read are of no part: they live as long as the pass.
Activations LayoutActivations(Carver& carver, const DecoderConfig& config,
                              const AdapterSizes& adapters, const Precision& precision,
                              const ActivationShape& shape) {
  Layout layout(carver, config, precision, shape);
  const IndexRange here = config.layers_here();
  Activations out;
  out.layers.resize(config.num_hidden_layers);
  layout.Inputs(out.inputs);
  out.keeps_stream = shape.training;
  const auto level = [&](std::int64_t l) {
    return shape.training ? shape.recompute[l] : Recompute::kLayer;
  };
  const auto shares_attention = [&](std::int64_t l) { return RecomputesAttention(level(l)); };
  const auto shares_mlp = [&](std::int64_t l) { return RecomputesMlp(level(l)); };
  // One memory for a part of several layers, each of which lays it out for its own sizes.
  const auto share = [&](const auto& shares, const auto& lay_out) {
    const Carver begin = carver;
    for (std::int64_t l = here.begin; l < here.end; ++l) {
      if (!shares(l)) continue;
      Carver part = begin;
      LayerLayout of_layer(layout, part, l);
      lay_out(of_layer, out.layers[l]);
      carver.GoBehind(part);
    }
  };

  // Outside training the residual stream is one buffer that every layer adds to.
  const MatrixView residual = shape.training ? MatrixView{} : layout.Stream();
  const auto stream = [&](Layout& where) { return shape.training ? where.Stream() : residual; };
  const auto attention = [&](LayerLayout& of_layer, LayerActivations& a) {
    of_layer.MixerPart(a);
    a.x_mid = stream(of_layer);
  };
  const auto mlp = [&](LayerLayout& of_layer, LayerActivations& a) {
    of_layer.MlpPart(a);
    if (config.per_layer_size > 0) a.per_layer.x = stream(of_layer);
  };
  for (std::int64_t l = here.begin; l < here.end; ++l) {
    out.layers[l].mixer = MixerOf(config, l);
    out.layers[l].mlp = MlpOf(config, l);
    if (config.is_kv_shared(l)) LayerLayout(layout, carver, l).SharedKv(out.layers[l]);
  }
  share(shares_attention, attention);
  share(shares_mlp, mlp);
  for (std::int64_t l = here.begin; l < here.end; ++l) {
    LayerActivations& a = out.layers[l];
    LayerLayout of_layer(layout, carver, l);
    if (!shares_attention(l)) attention(of_layer, a);
    if (!shares_mlp(l)) mlp(of_layer, a);
    a.x_in = stream(of_layer);
    if (shape.training) of_layer.Lora(adapters, a.u);
  }
  if (!shape.training) {
    share([](std::int64_t) { return true; },
          [&](LayerLayout& of_layer, LayerActivations& a) { of_layer.Lora(adapters, a.u); });
  }
  out.x_out = stream(layout);
  out.norm = layout.Act(config.hidden_size);
  if (shape.training) layout.Gradients(out);
  share([](std::int64_t) { return true; },
        [](LayerLayout& of_layer, LayerActivations& a) { of_layer.Scratch(a); });
  out.per_layer = LayoutPerLayer(carver, config, precision, shape.rows,
                                 shape.training && adapters.trains_per_layer);
  out.experts = LayoutExpertBuffers(carver, config, precision, shape.rows, shape.training);
  if (adapters.dora_linear > 0) {
    out.dora = LayoutDora(carver, adapters.dora_linear, shape.training ? adapters.dora_group : 0,
                          precision, shape.rows);
  }
  if (config.has_head()) layout.Head(out);
  return out;
}

std::size_t BytesOfPass(const DecoderConfig& config, const Adapters& adapters,
                        const Precision& precision, const ActivationShape& shape) {
  Carver plan;
  LayoutActivations(plan, config, AdapterSizes(config, adapters), precision, shape);
  return plan.bytes();
}

Activations LayoutActivations(Arena& memory, const DecoderConfig& config,
                              const AdapterSizes& adapters, const Precision& precision,
                              const ActivationShape& shape) {
  Carver carver(memory);
  Activations activations = LayoutActivations(carver, config, adapters, precision, shape);
  if (carver.bytes() > memory.bytes()) {
    ThrowRuntime("a pass over {} rows takes {} bytes of activations, and {} are reserved",
                 shape.rows, carver.bytes(), memory.bytes());
  }
  return activations;
}

}  // namespace qlora
