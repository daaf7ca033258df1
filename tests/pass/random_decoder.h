// Tiny random decoders of any configuration, for tests.
#ifndef QLORA_TESTS_MODEL_RANDOM_DECODER_H_
#define QLORA_TESTS_MODEL_RANDOM_DECODER_H_

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/matrix.h"
#include "base/random.h"
#include "pass/decoder.h"
#include "pass/loss.h"
#include "pass/pass_shape.h"

namespace qlora {

// A llama of 2 layers with grouped heads; tests change what they are about.
inline DecoderConfig TinyConfig() {
  DecoderConfig c;
  c.model_type = "llama";
  c.architecture = "LlamaForCausalLM";
  c.vocab_size = 23;
  c.hidden_size = 16;
  c.intermediate_size = 20;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 6;
  c.max_position_embeddings = 64;
  c.rms_norm_eps = 1e-3f;
  c.attention_scale = 1 / std::sqrt(6.0f);
  RopeConfig rope;
  rope.rotary_dim = 6;
  c.ropes = {rope};
  c.layers = {LayerConfig{}, LayerConfig{}};
  return c;
}

// A Gemma 4 of 5 layers. With `shared`, the last two attend to the keys and values of the second
// and the third, and each layer has an embedding; otherwise the values of layers without a window
// are keys.
inline DecoderConfig TinyGemma4(bool shared) {
  DecoderConfig c = TinyConfig();
  c.post_norms = c.value_norm = c.layer_scalar = c.tie_word_embeddings = true;
  c.qk_norm = QkNorm::kHeads;
  c.hidden_act = Activation::kGeluTanh;
  c.embed_scale = 4;
  c.attention_scale = 1;
  c.final_softcap = 3;
  c.ropes.push_back(c.ropes[0]);
  c.ropes[0].rotary_dim = 8;
  c.ropes[0].divisors.assign(4, std::numeric_limits<double>::infinity());
  c.ropes[0].divisors[0] = 1;
  const LayerConfig local = {.window = 4, .rope = 1};
  const LayerConfig full = {.num_key_value_heads = 1, .head_dim = 8, .k_is_v = !shared};
  c.layers = {full, local, full, local, full};
  c.num_hidden_layers = 5;
  if (!shared) return c;
  c.per_layer_size = 6;
  c.per_layer_vocab = c.vocab_size + 2;
  c.layers[3].kv_layer = 1;
  c.layers[4].kv_layer = 2;
  c.layers[3].intermediate_size = c.layers[4].intermediate_size = 24;
  return c;
}

// Owns random float32 weights for a configuration; norms are in the wide type.
class RandomWeights {
 public:
  RandomWeights(const DecoderConfig& c, DType wide, std::uint64_t seed, bool quantize = false)
      : wide_(wide), seed_(seed), quantize_(quantize), context_(1) {
    weights_.embed = Dense(c.vocab_size, c.hidden_size, 1.0);
    weights_.head =
        c.tie_word_embeddings ? weights_.embed : Dense(c.vocab_size, c.hidden_size, 0.4);
    weights_.final_norm = Vector(c.hidden_size, 1.0);
    weights_.head_norm = weights_.final_norm;
    if (c.per_layer_size > 0) {
      weights_.per_layer_embed = Dense(c.per_layer_vocab, c.per_layer_features(), 0.3);
      weights_.per_layer_norm = weights_.per_layer_half = Vector(c.per_layer_size, 0.7);
    }
    for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
      LayerWeights layer;
      layer.linears = Combine(LinearPaths(c, l), ShapeLinears(c, l),
                              [&](const std::string& path, const LinearShape& shape) {
                                const ConstMatrixView dense =
                                    Dense(shape.out, shape.in, 1 / std::sqrt(double(shape.in)));
                                FrozenLinear linear{path, dense, {}};
                                if (quantize_) {
                                  quantized_.push_back(Quantize(context_, dense));
                                  linear.weight = quantized_.back().view();
                                }
                                return linear;
                              });
      const auto bias = [&](FrozenLinear& linear, bool wanted) {
        if (wanted) linear.bias = Vector(linear.weight.rows(), 0.0);
      };
      const Mixer mixer = c.layers[l].mixer;
      const bool attends = mixer == Mixer::kAttention;
      const bool conv_bias = mixer == Mixer::kShortConv && c.conv_bias;
      for (FrozenLinear& linear : layer.linears.qkv) {
        bias(linear, attends ? c.qkv_bias : conv_bias);
      }
      bias(layer.linears.o, attends ? c.o_bias : conv_bias);
      if (!attends) AddConv(c, mixer, conv_bias, layer);
      for (FrozenLinear& linear : layer.linears.gate_up) bias(linear, c.mlp_bias);
      for (FrozenLinear& linear : layer.linears.down) bias(linear, c.mlp_bias);
      if (c.has_experts(l)) {
        layer.router = Dense(c.moe.num_experts, c.hidden_size, 0.7);
        if (c.moe.router_bias) layer.router_bias = Vector(c.moe.num_experts, 0.0);
        if (c.moe.expert_bias) layer.expert_bias = Vector(c.moe.num_experts, 0.0);
      }
      if (c.sinks) layer.sinks = Vector(c.num_attention_heads, 0.5);
      if (c.input_norms) {
        layer.input_norm = Vector(c.hidden_size, 1.0);
        layer.mlp_norm = Vector(c.hidden_size, 1.0);
      }
      if (c.post_norms) {
        layer.post_attn_norm = Vector(c.hidden_size, 1.0);
        layer.post_mlp_norm = Vector(c.hidden_size, 1.0);
      }
      const bool has_own_kv = c.layers[l].has_own_kv();
      if (attends && c.qk_norm != QkNorm::kNone) {
        layer.q_norm = Vector(c.q_norm_size(l), 1.0);
        if (has_own_kv) layer.k_norm = Vector(c.k_norm_size(l), 1.0);
      }
      if (c.value_norm && has_own_kv) layer.v_norm = Vector(c.layer(l).head_dim, 1.0);
      if (c.per_layer_size > 0) layer.per_layer_norm = Vector(c.hidden_size, 1.0);
      if (c.side_moe.num_experts > 0) AddSide(c, layer.side);
      if (c.layer_scalar) layer.scale = Vector(c.hidden_size, 0.7);
      weights_.layers.push_back(std::move(layer));
    }
  }

  const DecoderWeights& get() const { return weights_; }

 private:
  void AddConv(const DecoderConfig& c, Mixer mixer, bool bias, LayerWeights& layer) {
    const bool is_delta = mixer == Mixer::kDeltaRule;
    const std::int64_t channels = is_delta ? c.delta_conv_features() : c.hidden_size;
    layer.conv.weight = Wide(channels, c.conv_taps, 0.3);
    if (bias) layer.conv.bias = Vector(channels, 0.0);
    if (!is_delta) return;
    layer.delta_rule.rate = Vector(c.delta_rule.heads, -1.0);
    layer.delta_rule.dt_bias = Vector(c.delta_rule.heads, 0.5);
    layer.delta_rule.norm = Vector(c.delta_rule.value_dim, 1.0);
  }

  void AddSide(const DecoderConfig& c, SideWeights& side) {
    const std::int64_t d = c.hidden_size;
    side.router_norm = Vector(d, 0.7);
    side.expert_scale = Reshape(Vector(c.side_moe.num_experts, 1.0), 1);
    side.dense_norm = Vector(d, 1.0);
    side.norm = Vector(d, 1.0);
    side.sum_norm = Vector(d, 1.0);
  }

  double Normal() { return RandomNormal(MakeKey(seed_, RandomPlace::kTest), next_++); }

  ConstMatrixView Dense(std::int64_t rows, std::int64_t cols, double deviation) {
    storage_.emplace_back(static_cast<std::size_t>(rows * cols) * sizeof(float));
    auto* data = static_cast<float*>(static_cast<void*>(storage_.back().data()));
    for (std::int64_t i = 0; i < rows * cols; ++i)
      data[i] = static_cast<float>(deviation * Normal());
    return MakeView(data, rows, cols);
  }

  ConstMatrixView Vector(std::int64_t size, double mean) { return Wide(1, size, mean); }

  ConstMatrixView Wide(std::int64_t rows, std::int64_t cols, double mean) {
    storage_.emplace_back(BytesOf(wide_, rows * cols));
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows * cols; ++i)
      values.push_back(static_cast<float>(mean + 0.2 * Normal()));
    const MatrixView out{storage_.back().data(), wide_, rows, cols, cols};
    ConvertToWide(values.data(), DType::kF32, 0, Reshape(out, rows * cols));
    return out;
  }

  DType wide_;
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
  bool quantize_;
  Context context_;
  std::vector<std::vector<std::byte>> storage_;
  std::vector<QuantizedMatrix> quantized_;
  DecoderWeights weights_;
};

// An adapter on every linear, with both matrices random; `config` says of which kind.
inline LoraAdapter RandomAdapter(const DecoderConfig& c, std::int64_t rank, DType wide,
                                 std::uint64_t seed, double dropout = 0,
                                 AdapterConfig config = {}) {
  config.r = rank;
  config.lora_alpha = 2.0 * static_cast<double>(rank);
  config.lora_dropout = dropout;
  config.target_modules = std::string("all-linear");
  // PEFT has neither dropout nor DoRA for them.
  if (c.joins_experts() && dropout == 0 && !config.use_dora) {
    config.target_parameters = {"experts.gate_up_proj", "experts.down_proj"};
  }
  LoraAdapter adapter = LoraAdapter::Create(config, c, HostMemory(), seed, wide);
  std::uint64_t next = 0;
  for (PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](LoraLinear& lora) {
      if (lora.rank == 0) return;
      std::vector<float> values;
      for (std::int64_t i = 0; i < lora.b.rows * lora.b.cols; ++i) {
        values.push_back(
            static_cast<float>(0.3 * RandomNormal(MakeKey(seed, RandomPlace::kTest, 7), next++)));
      }
      ConvertToWide(values.data(), DType::kF32, 0, Reshape(lora.b, lora.b.rows * lora.b.cols));
      if (!config.use_dora) return;
      values.clear();
      for (std::int64_t i = 0; i < lora.out; ++i) {
        values.push_back(static_cast<float>(
            1 + 0.3 * RandomNormal(MakeKey(seed, RandomPlace::kTest, 8), next++)));
      }
      ConvertToWide(values.data(), DType::kF32, 0, lora.magnitude);
    });
  }
  adapter.AllocateGradients();
  return adapter;
}

// Sequences of unequal length, some targets ignored.
inline Batch RandomBatch(const DecoderConfig& c, const std::vector<int>& lengths,
                         std::uint64_t seed) {
  std::vector<Sample> samples;
  std::uint64_t next = 0;
  for (int length : lengths) {
    Sample sample;
    for (int t = 0; t < length; ++t) {
      const RandomKey key = MakeKey(seed, RandomPlace::kTest, 9);
      sample.ids.push_back(static_cast<std::int32_t>(
          RandomBelow(key, next++, static_cast<std::uint64_t>(c.vocab_size))));
      const bool ignored = RandomUniform(key, 1000000 + next) < 0.25f;
      sample.labels.push_back(ignored ? kIgnoreLabel : sample.ids.back());
    }
    samples.push_back(std::move(sample));
  }
  return MakeBatch(samples);
}

// Runs forward, loss and backward; owns the memory they need.
class Runner {
 public:
  // adapter: of all rows, or null.
  Runner(const Decoder& decoder, LoraAdapter* adapter, const Batch& batch, Recompute recompute,
         std::int64_t head_rows = 7)
      : decoder_(decoder), adapter_(adapter), batch_(batch) {
    const auto layers = static_cast<std::size_t>(decoder.config().num_hidden_layers);
    shape_ = {batch.rows(), head_rows, true, std::vector<Recompute>(layers, recompute),
              batch.unfolded_rows()};
    const AdapterSizes adapters(decoder.config(), AdaptersOf(adapter));
    Carver plan;
    LayoutActivations(plan, decoder.config(), adapters, decoder.precision(), shape_);
    arena_ = Arena(plan.bytes(), decoder.backend().memory());
    Carver carver(arena_);
    activations_ =
        LayoutActivations(carver, decoder.config(), adapters, decoder.precision(), shape_);
  }

  // row_scale: of every supervised row; 0: none.
  PassInputs Prepare(const DropoutState& dropout = {}, double row_scale = 0) {
    const std::vector<float> scales(row_scale == 0 ? 0 : batch_.supervised(),
                                    static_cast<float>(row_scale));
    return PrepareInputs(decoder_, batch_, {ForAllRows(adapter_, batch_.rows()), dropout, scales},
                         activations_);
  }
  double Loss(const DropoutState& dropout = {}) {
    const PassInputs inputs = Prepare(dropout);
    Forward(decoder_, inputs, activations_);
    return qlora::Loss(decoder_, inputs, activations_).loss;
  }
  double LossAndGradients(const DropoutState& dropout = {}, double scale = 1) {
    adapter_->ZeroGradients();
    const PassInputs inputs = Prepare(dropout, scale);
    Forward(decoder_, inputs, activations_);
    const double loss = LossAndGradient(decoder_, inputs, activations_, *adapter_).loss;
    Backward(decoder_, inputs, shape_.recompute, activations_, *adapter_);
    return loss;
  }
  Activations& activations() { return activations_; }

 private:
  const Decoder& decoder_;
  LoraAdapter* adapter_;
  const Batch& batch_;
  ActivationShape shape_;
  Arena arena_;
  Activations activations_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_MODEL_RANDOM_DECODER_H_
