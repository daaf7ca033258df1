#include "pass/flops.h"

#include "model/linear_shapes.h"

namespace qlora {
namespace {

double Parameters(const LinearShape& shape) { return static_cast<double>(shape.out * shape.in); }

double ShareOf(const MoeConfig& experts) {
  return static_cast<double>(experts.num_experts_per_tok) /
         static_cast<double>(experts.num_experts);
}

// The part of the linears of a group that one token passes: of experts, those that are chosen.
double ShareOfToken(const DecoderConfig& config, std::int64_t l, LinearGroup group) {
  if (group == LinearGroup::kSideIn || group == LinearGroup::kSideOut) {
    return config.side_moe.num_experts > 0 ? ShareOf(config.side_moe) : 1;
  }
  const bool is_of_experts =
      config.has_experts(l) && (group == LinearGroup::kGateUp || group == LinearGroup::kDown);
  return is_of_experts ? ShareOf(config.moe) : 1;
}

// Parameters of the router, which is no linear of PerLinear.
double RouterParameters(const DecoderConfig& config, std::int64_t l) {
  return config.has_experts(l) ? Parameters({config.moe.num_experts, config.hidden_size}) : 0;
}

// Whether a pass that recomputes computes the linears of a group again.
bool IsRecomputed(const DecoderConfig& config, std::int64_t l, LinearGroup group,
                  Recompute recompute) {
  switch (group) {
    case LinearGroup::kQkv:
    case LinearGroup::kO:
      return RecomputesAttention(recompute);
    case LinearGroup::kGateUp:
    case LinearGroup::kSharedIn:
    case LinearGroup::kPerLayerGate:
    case LinearGroup::kPerLayerOut:
    case LinearGroup::kSideRouter:
    case LinearGroup::kSideIn:
    case LinearGroup::kSideOut:
      return RecomputesMlp(recompute);
    case LinearGroup::kDown:
      // Its output is read again by a norm behind it, or by a per-layer embedding.
      return RecomputesMlp(recompute) && !config.has_experts(l) &&
             (config.post_norms || config.per_layer_size > 0);
    case LinearGroup::kSharedOut:
    case LinearGroup::kPerLayerModel:
      break;
  }
  return false;
}

// Keys that a token sees on average, twice, in a sequence of `length`.
double KeysOfToken(const LayerConfig& layer, std::int64_t length) {
  const auto all = static_cast<double>(length);
  const auto window = static_cast<double>(layer.window);
  return layer.window == 0 || window >= all ? all : 2 * window - window * window / all;
}

// Of weights of which `quantized` is the share that is quantized.
Flops WithWeights(double quantized, double forward, double backward) {
  return {quantized * forward, quantized * backward, (1 - quantized) * (forward + backward)};
}

// FLOPs of one token in the mixer of layer l, without its linears.
double MixerFlops(const DecoderConfig& config, std::int64_t l, std::int64_t length,
                  Recompute recompute) {
  const LayerConfig layer = config.layer(l);
  if (layer.mixer == Mixer::kShortConv) return 0;
  if (layer.mixer == Mixer::kDeltaRule) {
    // The rule token by token: 4 K V multiply-adds forward and 9 backward, which finds states
    // again.
    const DeltaRuleShape& shape = config.delta_rule;
    const auto state = static_cast<double>(shape.heads * shape.key_dim * shape.value_dim);
    return 2 * state * (4 + 9 + (RecomputesAttention(recompute) ? 4 : 0));
  }
  // Causal attention of one sequence: q k^T and p v are 2 T^2 H K each, halved by the mask;
  // backward has five such products.
  const double pairs = KeysOfToken(layer, length) * static_cast<double>(layer.q_features());
  return pairs * (2 + 5 + (RecomputesAttention(recompute) ? 2 : 0));
}

// FLOPs of one token in layer l.
Flops LayerFlops(const DecoderConfig& config, const LoraAdapter& adapter,
                 const QuantizedShares& quantized, std::int64_t l, std::int64_t length,
                 Recompute recompute) {
  const PerLinear<LoraLinear>& linears = adapter.layers()[l];
  Flops layer;
  for (const LinearGroup group : kLinearGroups) {
    const double forwards = IsRecomputed(config, l, group, recompute) ? 2 : 1;
    Flops flops;
    for (const LoraLinear& linear : GroupOf(linears, group)) {
      const double weight = Parameters({linear.out, linear.in});
      const auto lora = static_cast<double>(linear.rank * (linear.out + linear.in));
      // Forward 2, gradient of the input 2; adapters also have the gradients of A and B: 2. The
      // linear of the model that per-layer embeddings come from has a gradient only if it is
      // trained.
      const bool goes_back = group != LinearGroup::kPerLayerModel || linear.rank > 0;
      flops += WithWeights(quantized.Of(group), 2 * forwards * weight, goes_back ? 2 * weight : 0);
      flops.others += (2 * forwards + 4) * lora;
    }
    layer += ShareOfToken(config, l, group) * flops;
  }
  layer.others += (RecomputesMlp(recompute) ? 6 : 4) * RouterParameters(config, l);
  layer.others += MixerFlops(config, l, length, recompute);
  return layer;
}

}  // namespace

Flops& Flops::operator+=(const Flops& more) {
  forward += more.forward;
  backward += more.backward;
  others += more.others;
  return *this;
}

Flops operator*(double factor, const Flops& flops) {
  return {factor * flops.forward, factor * flops.backward, factor * flops.others};
}

double SecondsOf(const Flops& flops, const FlopRates& rates) {
  return flops.forward / rates.forward + flops.backward / rates.backward +
         flops.others / rates.others;
}

FlopRates LimitRates(const Precision& precision, const std::function<double(DType)>& peak) {
  const double others = peak(precision.activation);
  if (precision.frozen == FrozenProducts::kFloat) return {others, others, others};
  const double coded = peak(DType::kI8);
  return {coded, precision.frozen == FrozenProducts::kInt8 ? coded : others, others};
}

Flops StepFlops(const DecoderConfig& config, const LoraAdapter& adapter,
                const QuantizedShares& quantized, std::int64_t rows, std::int64_t supervised,
                std::int64_t length, std::span<const Recompute> recompute) {
  Flops token;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    token += LayerFlops(config, adapter, quantized, l, length, recompute[l]);
  }
  // A head that is trained is not quantized.
  const double of_head = adapter.head() == nullptr ? quantized.head : 0;
  const double head = 2 * Parameters({config.vocab_size, config.hidden_size});
  Flops step = static_cast<double>(rows) * token;
  step += static_cast<double>(supervised) * WithWeights(of_head, head, head);
  return step;
}

Flops PrefillFlops(const DecoderConfig& config, const QuantizedShares& quantized,
                   std::int64_t rows) {
  const auto n = static_cast<double>(rows);
  // 2 FLOPs for each weight and token; the output head sees the last token alone.
  Flops all =
      WithWeights(quantized.head, 2 * Parameters({config.vocab_size, config.hidden_size}), 0);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const PerLinear<LinearShape> shapes = ShapeLinears(config, l);
    for (const LinearGroup group : kLinearGroups) {
      double weights = 0;
      for (const LinearShape& shape : GroupOf(shapes, group)) {
        weights += ShareOfToken(config, l, group) * Parameters(shape);
      }
      all += WithWeights(quantized.Of(group), 2 * n * weights, 0);
    }
    // Causal attention: q k^T and p v are 2 N^2 H K each, halved by the mask.
    const LayerConfig layer = config.layer(l);
    all.others += 2 * n * RouterParameters(config, l);
    all.others += 2 * n * KeysOfToken(layer, rows) * static_cast<double>(layer.q_features());
  }
  return all;
}

double LinearBytesOfToken(const DecoderConfig& config, const DecoderWeights& weights) {
  double bytes = 0;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerWeights& layer = weights.layers[l];
    for (const LinearGroup group : kLinearGroups) {
      for (const FrozenLinear& linear : GroupOf(layer.linears, group)) {
        bytes += ShareOfToken(config, l, group) * static_cast<double>(BytesOf(linear.weight));
      }
    }
  }
  return bytes;
}

}  // namespace qlora
