#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/matrix.h"
#include "model/checkpoint.h"
#include "model/checkpoint_tensors.h"
#include "model/weight_reader.h"

namespace qlora {
namespace {

// All weights of a decoder.
class Loader : public WeightReader {
 public:
  using WeightReader::WeightReader;

  // Everything but the owners.
  void Run(Carver& carver, bool read, DecoderWeights& out) {
    const bool carries_state = std::ranges::any_of(
        config_.layers, [](const LayerConfig& layer) { return layer.mixer != Mixer::kAttention; });
    if (carries_state && !backend_.CarriesState()) {
      ThrowInvalidInput(
          "model_type '{}' has layers that carry a state from token to token, which --device cuda "
          "does not compute; use --device cpu",
          config_.model_type);
    }
    if (config_.sinks && !backend_.CarriesState()) {
      ThrowInvalidInput(
          "model_type '{}' has attention sinks, which --device cuda does not compute; use --device "
          "cpu",
          config_.model_type);
    }
    Begin(carver, read);
    embedding_ = 0;
    const IndexRange here = config_.layers_here();
    out.layers.clear();
    // A tied head is the embedding itself, in the file and in memory.
    const bool tied = config_.tie_word_embeddings;
    if (config_.has_embedding() || (tied && config_.has_head())) Embedding(out);
    if (config_.has_head()) FinalNorms(out);
    if (config_.has_head()) out.head = tied ? out.embed : Head();
    if (config_.per_layer_size > 0) PerLayerEmbedding(out);
    out.layers.resize(config_.num_hidden_layers);
    for (std::int64_t l = here.begin; l < here.end; ++l) out.layers[l] = Layer(l);
    out.sizes = {carver.bytes(),
                 place_->mapped(),
                 embedding_,
                 stored_4bit_,
                 tensors_.parameters(),
                 {block_formats_.begin(), block_formats_.end()},
                 // A stage leaves the tensors of others alone.
                 here.size() == config_.num_hidden_layers ? tensors_.Notes(config_)
                                                          : std::vector<std::string>{}};
  }

 private:
  void FinalNorms(DecoderWeights& out) {
    const std::string final_norm =
        fmt::format("{}{}.weight", tensors_.prefix(), config_.names.final_norm);
    out.final_norm = Norm(final_norm, config_.hidden_size);
    out.head_norm = config_.logit_scale == 1
                        ? out.final_norm
                        : Norm(final_norm, config_.hidden_size, config_.logit_scale);
  }

  void Embedding(DecoderWeights& out) {
    const bool tied = config_.tie_word_embeddings;
    const TensorInfo& tensor = tensors_.Get(tensors_.prefix() + "embed_tokens.weight",
                                            {config_.vocab_size, config_.hidden_size});
    // Rows of more than 16 bits would not fit into the buffer that a pass uploads them to.
    const bool may_stay = !tied && !IsHost(backend_.memory()) && !tensor.dtype.is_blocks() &&
                          BytesOf(tensor.dtype, 1) <= 2;
    out.host_embedding = may_stay && options_.host_embedding;
    const std::size_t before = place_->carver().bytes();
    out.embed = out.host_embedding
                    ? InFile(tensor, config_.vocab_size)
                    : Table(tensor, config_.vocab_size, tied ? options_.use : WeightUse::kTraining);
    if (may_stay) {
      embedding_ = out.host_embedding ? tensor.bytes() : place_->carver().bytes() - before;
    }
  }

  void PerLayerEmbedding(DecoderWeights& out) {
    const std::int64_t rows = config_.per_layer_vocab;
    const std::int64_t cols = config_.per_layer_features();
    const TensorInfo& tensor =
        tensors_.Get(tensors_.prefix() + "embed_tokens_per_layer.weight", {rows, cols});
    out.per_layer_embed = RowsInFile(tensor, rows, cols);
    const std::int64_t size = config_.per_layer_size;
    const TensorInfo& norm =
        tensors_.Get(tensors_.prefix() + "per_layer_projection_norm.weight", {size});
    out.per_layer_norm = Wide(norm, 1, size, 0, 1);
    out.per_layer_half = Wide(norm, 1, size, 0, std::numbers::sqrt2 / 2);
  }

  // The number by which the output of a layer is multiplied, for each channel.
  ConstMatrixView LayerScale(const std::string& name) {
    const std::vector<float> value = Values(tensors_.Get(name, {1}));
    return Constant(config_.hidden_size, value.empty() ? 1 : value.front());
  }

  // -exp(A_log), which a GGUF file holds in the place of A_log.
  ConstMatrixView Rate(const std::string& path) {
    const std::int64_t heads = config_.delta_rule.heads;
    if (reader_.Find(path + "rate") != nullptr) return Wide(path + "rate", heads);
    const TensorInfo& tensor = tensors_.Get(path + "A_log", {heads});
    std::vector<float> values = Values(tensor);
    for (std::size_t h = 0; h < values.size(); ++h) {
      values[h] = static_cast<float>(-std::exp(double{values[h]}));
      if (!std::isfinite(values[h])) ThrowNotFinite(tensor, static_cast<std::int64_t>(h));
    }
    return Vector(heads, values);
  }

  // The convolution, which files have as (C, 1, K).
  ConvWeights Conv(const std::string& path, std::int64_t channels, bool bias) {
    const std::int64_t taps = config_.conv_taps;
    const TensorInfo& tensor = tensors_.Get(path + ".weight", {channels, 1, taps});
    ConvWeights out{Wide(tensor, channels, taps, 0, 1), {}};
    if (bias) out.bias = Wide(path + ".bias", channels);
    return out;
  }

  // Gemma stores w - 1; 1 is added here, so that the ops know one form of norm.
  ConstMatrixView Norm(const std::string& name, std::int64_t size, double factor = 1) {
    return Wide(name, size, config_.one_plus_norm ? 1 : 0, factor);
  }

  void SideExperts(const std::string& layer, LayerWeights& weights) {
    const std::int64_t d = config_.hidden_size;
    const std::int64_t m = config_.side_intermediate_size;
    const std::int64_t experts = config_.side_moe.num_experts;
    SideWeights& out = weights.side;
    // In the type of the file: a rounded logit may choose another expert.
    const std::string router = layer + "router.proj";
    weights.linears.side_router = {{router, Table(router + ".weight", experts, options_.use), {}}};
    out.router_norm = Wide(layer + "router.scale", d, 0, 1 / std::sqrt(static_cast<double>(d)));
    out.expert_scale = Reshape(Wide(layer + "router.per_expert_scale", experts), 1);
    out.dense_norm = Norm(layer + "post_feedforward_layernorm_1.weight", d);
    out.norm = Norm(layer + "pre_feedforward_layernorm_2.weight", d);
    out.sum_norm = Norm(layer + "post_feedforward_layernorm_2.weight", d);
    weights.linears.side_in = Stack(layer + "experts.", "gate_up_proj", {2 * m, d});
    weights.linears.side_out = Stack(layer + "experts.", "down_proj", {d, m});
  }

  // All tensors of one layer, in the order in which passes read them.
  LayerWeights Layer(std::int64_t l) {
    const std::string layer = fmt::format("{}layers.{}.", tensors_.prefix(), l);
    const PerLinear<std::string> names = LinearNames(config_, l);
    const PerLinear<LinearShape> shapes = ShapeLinears(config_, l);
    LayerWeights out;
    const auto norm = [&](std::string_view name, std::int64_t size) {
      return Norm(fmt::format("{}{}.weight", layer, name), size);
    };
    const ModuleNames& of = config_.names;
    const std::int64_t d = config_.hidden_size;
    if (config_.input_norms) out.input_norm = norm(of.input_norm, d);
    const Mixer mixer = config_.layers[l].mixer;
    const bool attends = mixer == Mixer::kAttention;
    const bool has_conv_bias = mixer == Mixer::kShortConv && config_.conv_bias;
    for (std::size_t i = 0; i < names.qkv.size(); ++i) {
      const bool bias = attends ? config_.qkv_bias : has_conv_bias;
      out.linears.qkv.push_back(Linear(layer + names.qkv[i], shapes.qkv[i], bias));
    }
    if (config_.sinks) {
      out.sinks = Wide(layer + "self_attn.sinks", config_.layer(l).num_attention_heads);
    }
    const bool has_own_kv = config_.layers[l].has_own_kv();
    if (attends && config_.qk_norm != QkNorm::kNone) {
      out.q_norm = norm(of.q_norm, config_.q_norm_size(l));
      if (has_own_kv) out.k_norm = norm(of.k_norm, config_.k_norm_size(l));
    }
    if (config_.value_norm && has_own_kv) out.v_norm = Constant(config_.layer(l).head_dim, 1);
    if (mixer == Mixer::kDeltaRule) {
      const std::string path = layer + "linear_attn.";
      out.conv = Conv(path + "conv1d", config_.delta_conv_features(), false);
      out.delta_rule.rate = Rate(path);
      out.delta_rule.dt_bias = Wide(path + "dt_bias", config_.delta_rule.heads);
      out.delta_rule.norm = Wide(path + "norm.weight", config_.delta_rule.value_dim);
    }
    if (mixer == Mixer::kShortConv) out.conv = Conv(layer + "conv.conv", d, has_conv_bias);
    out.linears.o = Linear(layer + names.o, shapes.o, attends ? config_.o_bias : has_conv_bias);
    if (config_.post_norms) out.post_attn_norm = norm(of.post_attn_norm, d);
    if (config_.input_norms) out.mlp_norm = norm(of.mlp_norm, d);
    if (config_.post_norms) out.post_mlp_norm = norm(of.post_mlp_norm, d);
    for (std::size_t i = 0; i < names.gate_up.size(); ++i) {
      out.linears.gate_up.push_back(
          Linear(layer + names.gate_up[i], shapes.gate_up[i], config_.mlp_bias));
    }
    for (std::size_t i = 0; i < names.down.size(); ++i) {
      out.linears.down.push_back(Linear(layer + names.down[i], shapes.down[i], config_.mlp_bias));
    }
    if (config_.per_layer_size > 0) {
      const auto one = [&](const std::string& path, const LinearShape& shape) {
        return std::vector{Linear(path, shape, false)};
      };
      out.linears.per_layer_gate = one(layer + names.per_layer_gate[0], shapes.per_layer_gate[0]);
      out.linears.per_layer_out = one(layer + names.per_layer_out[0], shapes.per_layer_out[0]);
      out.per_layer_norm = norm("post_per_layer_input_norm", d);
      if (l == 0) {
        out.linears.per_layer_model =
            one(tensors_.prefix() + names.per_layer_model[0], shapes.per_layer_model[0]);
      }
    }
    if (config_.side_moe.num_experts > 0) SideExperts(layer, out);
    if (config_.layer_scalar) out.scale = LayerScale(layer + "layer_scalar");
    if (!config_.has_experts(l)) return out;
    for (std::size_t i = 0; i < names.shared_in.size(); ++i) {
      out.linears.shared_in.push_back(
          Linear(layer + names.shared_in[i], shapes.shared_in[i], false));
    }
    for (std::size_t i = 0; i < names.shared_out.size(); ++i) {
      out.linears.shared_out.push_back(
          Linear(layer + names.shared_out[i], shapes.shared_out[i], false));
    }
    out.router =
        Table(layer + RouterName(config_) + ".weight", config_.moe.num_experts, options_.use);
    if (config_.moe.router_bias) {
      out.router_bias = Wide(layer + RouterName(config_) + ".bias", config_.moe.num_experts);
    }
    if (config_.moe.expert_bias) {
      out.expert_bias = Wide(layer + ExpertBiasName(config_), config_.moe.num_experts);
    }
    return out;
  }

  std::size_t embedding_ = 0;  // WeightSizes::embedding
};

// The sizes of a run that only counts.
WeightSizes Plan(Context& context, Backend& backend, const DecoderConfig& config,
                 const LoadOptions& options, CheckpointTensors& tensors) {
  Loader loader(context, backend, config, options, tensors);
  DecoderWeights weights;
  Carver plan;
  loader.Run(plan, false, weights);
  return weights.sizes;
}

}  // namespace

WeightSizes PlanWeights(Context& context, Backend& backend, const std::filesystem::path& model_dir,
                        const DecoderConfig& config, const LoadOptions& options) {
  const std::unique_ptr<TensorReader> reader = OpenCheckpoint(model_dir, config);
  CheckpointTensors tensors(*reader);
  return Plan(context, backend, config, options, tensors);
}

WeightSizes PlanWeights(Context& context, Backend& backend, const DecoderConfig& config,
                        const LoadOptions& options) {
  CheckpointTensors tensors(config);
  return Plan(context, backend, config, options, tensors);
}

DecoderWeights LoadWeights(Context& context, Backend& backend,
                           const std::filesystem::path& model_dir, const DecoderConfig& config,
                           const LoadOptions& options) {
  DecoderWeights weights;
  weights.reader = OpenCheckpoint(model_dir, config);
  CheckpointTensors tensors(*weights.reader);
  Loader loader(context, backend, config, options, tensors);
  Carver plan;
  loader.Run(plan, false, weights);
  weights.arena = Arena(plan.bytes(), backend.memory());
  Carver carver(weights.arena);
  loader.Run(carver, true, weights);
  QLORA_DCHECK(carver.bytes() == plan.bytes());
  weights.owners = loader.TakeOwners();
  weights.reader->Trim();
  return weights;
}

}  // namespace qlora
