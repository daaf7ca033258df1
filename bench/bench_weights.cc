#include "bench/bench_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "ggml/encode.h"
#include "model/weight_placement.h"
#include "quant/layout.h"

namespace qlora::bench {
namespace {

// A short list that is read over and over: random numbers for a billion weights would take minutes.
constexpr std::size_t kValues = 65536 - 64;
// Rows of a weight that differ, where encoding a billion weights would take minutes.
constexpr std::int64_t kEncodedRows = 61;
// Values of a dense matrix that are made at once.
constexpr std::int64_t kPieceValues = 1 << 24;

}  // namespace

const BlockFormatInfo* ParseBlocks(const std::string& format, std::int64_t cols) {
  if (format == "nf4") return nullptr;
  const BlockFormatInfo* info = FindBlockFormat(std::string_view(format));
  if (info == nullptr || !info->encodable) {
    ThrowInvalidInput(
        "weight_formats: expected nf4 or a format of ggml that is written here, "
        "such as Q4_K, found '{}'",
        format);
  }
  if (cols % info->values != 0) {
    ThrowInvalidInput("rows of {} values are no whole blocks of {}, which have {}", cols, format,
                      info->values);
  }
  return info;
}

std::string FormatOf(const DecoderConfig& config, std::string_view path,
                     const std::string& format) {
  if (path.ends_with(".router.proj")) return "bf16";  // of experts beside the MLP: never quantized
  return format == "nf4" && IsJoinedExpert(config, path) ? "MXFP4" : format;
}

RandomModel::RandomModel(Counted, Context& context, Backend& backend, const DecoderConfig& config,
                         const std::string& format, WeightUse use)
    : context_(context),
      backend_(backend),
      config_(config),
      format_(format),
      use_(use),
      values_(kValues),
      per_layer_table_(
          BytesOf(DType::kBF16, config.per_layer_vocab * config.per_layer_features())) {
  const RandomKey key = MakeKey(1, RandomPlace::kTest);
  for (std::size_t i = 0; i < kValues; ++i) {
    values_[i] = ToBFloat16(2 * RandomUniform(key, i) - 1);
  }
  Carver plan;
  Layout(plan);
  bytes_ = plan.bytes();
}

RandomModel::RandomModel(Context& context, Backend& backend, const DecoderConfig& config,
                         const std::string& format, WeightUse use)
    : RandomModel(Counted(), context, backend, config, format, use) {
  arena_ = Arena(bytes_, backend.memory());
  Carver carver(arena_);
  Layout(carver);
}

WeightSizes RandomModel::Plan(Context& context, Backend& backend, const DecoderConfig& config,
                              const std::string& format, WeightUse use) {
  const RandomModel plan(Counted(), context, backend, config, format, use);
  return {.owned = plan.bytes_, .quantized = QuantizedSharesOf(plan.weights_)};
}

void RandomModel::Layout(Carver& carver) {
  carver_ = &carver;
  const std::int64_t d = config_.hidden_size;
  weights_.head = Dense(config_.vocab_size, d);
  // To generate, apart: a tied head would be read from the cache of the embedding.
  const bool is_tied = config_.tie_word_embeddings && use_ == WeightUse::kTraining;
  weights_.embed = is_tied ? weights_.head : Dense(config_.vocab_size, d);
  weights_.final_norm = Ones(d);
  weights_.head_norm =
      config_.logit_scale == 1 ? weights_.final_norm : Constant(1, d, config_.logit_scale);
  if (config_.per_layer_size > 0) {
    const std::int64_t features = config_.per_layer_features();
    weights_.per_layer_embed = ConstMatrixView{per_layer_table_.data(), DType::kBF16,
                                               config_.per_layer_vocab, features, features};
    weights_.per_layer_norm = Ones(config_.per_layer_size);
    weights_.per_layer_half = Constant(1, config_.per_layer_size, std::numbers::sqrt2_v<float> / 2);
  }
  // The run that counts has left entries without memory.
  weights_.layers.clear();
  for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    weights_.layers.push_back(Layer(l));
  }
}

LayerWeights RandomModel::Layer(std::int64_t l) {
  LayerWeights layer;
  layer.linears = Combine(LinearPaths(config_, l), ShapeLinears(config_, l),
                          [&](const std::string& path, const LinearShape& shape) {
                            const std::string format = FormatOf(config_, path, format_);
                            return FrozenLinear{path, Weight(format, shape), {}};
                          });
  AddNorms(l, layer);
  AddState(config_.layers[l].mixer, layer);
  AddBiases(l, layer);
  if (config_.has_experts(l)) AddExperts(layer);
  if (config_.side_moe.num_experts > 0) AddSideExperts(layer.side);
  return layer;
}

std::vector<BFloat16> RandomModel::Values(std::int64_t first, std::int64_t rows,
                                          std::int64_t cols) const {
  std::vector<BFloat16> values(rows * cols);
  // Outputs of about the size of inputs: activations of 22 layers neither vanish nor overflow.
  const float deviation = 1 / std::sqrt(static_cast<float>(cols));
  context_.ParallelFor(rows, [&](std::int64_t r, int) {
    BFloat16* row = values.data() + r * cols;
    // Each row begins elsewhere, so that no two neighbours are equal.
    auto at = static_cast<std::size_t>(first + r) * 977 % kValues;
    for (std::int64_t i = 0; i < cols; ++i, ++at) {
      if (at == kValues) at = 0;
      row[i] = ToBFloat16(deviation * ToFloat(values_[at]));
    }
  });
  return values;
}

ConstMatrixView RandomModel::Dense(std::int64_t rows, std::int64_t cols) {
  const MatrixView m = carver_->Matrix(DType::kBF16, rows, cols);
  if (m.data == nullptr) return m;
  const std::int64_t piece = std::max<std::int64_t>(1, kPieceValues / cols);
  for (std::int64_t row = 0; row < rows; row += piece) {
    const std::int64_t count = std::min(piece, rows - row);
    Upload(backend_.memory(), std::span<const BFloat16>(Values(row, count, cols)),
           Rows(m, row, count));
  }
  return m;
}

ConstMatrixView RandomModel::Ones(std::int64_t size) { return Constant(1, size, 1); }

ConstMatrixView RandomModel::Constant(std::int64_t rows, std::int64_t cols, float value) {
  const MatrixView m = carver_->Matrix(DType::kF32, rows, cols);
  if (m.data == nullptr) return m;
  Upload(backend_.memory(), std::span<const float>(std::vector<float>(rows * cols, value)), m);
  return m;
}

// Norms of ones, as models begin; the values do not change the cost.
void RandomModel::AddNorms(std::int64_t l, LayerWeights& layer) {
  const DecoderConfig& c = config_;
  if (c.input_norms) {
    layer.input_norm = Ones(c.hidden_size);
    layer.mlp_norm = Ones(c.hidden_size);
  }
  if (c.post_norms) {
    layer.post_attn_norm = Ones(c.hidden_size);
    layer.post_mlp_norm = Ones(c.hidden_size);
  }
  const LayerConfig sizes = c.layer(l);
  const bool attends = sizes.mixer == Mixer::kAttention;
  if (attends && c.qk_norm != QkNorm::kNone) {
    layer.q_norm = Ones(c.q_norm_size(l));
    if (sizes.has_own_kv()) layer.k_norm = Ones(c.k_norm_size(l));
  }
  if (c.value_norm && sizes.has_own_kv()) layer.v_norm = Ones(sizes.head_dim);
  if (c.sinks) layer.sinks = Constant(1, sizes.num_attention_heads, 0);
  if (c.per_layer_size > 0) layer.per_layer_norm = Ones(c.hidden_size);
  if (c.layer_scalar) layer.scale = Ones(c.hidden_size);
}

void RandomModel::AddState(Mixer mixer, LayerWeights& layer) {
  if (mixer == Mixer::kAttention) return;
  const bool is_delta = mixer == Mixer::kDeltaRule;
  const std::int64_t channels = is_delta ? config_.delta_conv_features() : config_.hidden_size;
  const std::int64_t taps = config_.conv_taps;
  layer.conv.weight = Constant(channels, taps, 1 / static_cast<float>(taps));
  if (!is_delta) {
    if (config_.conv_bias) layer.conv.bias = Constant(1, channels, 0);
    return;
  }
  layer.delta_rule.rate = Constant(1, config_.delta_rule.heads, -1);
  layer.delta_rule.dt_bias = Ones(config_.delta_rule.heads);
  layer.delta_rule.norm = Ones(config_.delta_rule.value_dim);
}

// Biases of zero, as models begin.
void RandomModel::AddBiases(std::int64_t l, LayerWeights& layer) {
  const Mixer mixer = config_.layers[l].mixer;
  const bool attends = mixer == Mixer::kAttention;
  const bool has_conv_bias = mixer == Mixer::kShortConv && config_.conv_bias;
  const auto add = [&](bool has_bias, FrozenLinear& linear, const LinearShape& shape) {
    if (has_bias) linear.bias = Constant(1, shape.out, 0);
  };
  const PerLinear<LinearShape> shapes = ShapeLinears(config_, l);
  PerLinear<FrozenLinear>& linears = layer.linears;
  for (std::size_t i = 0; i < linears.qkv.size(); ++i) {
    add(attends ? config_.qkv_bias : has_conv_bias, linears.qkv[i], shapes.qkv[i]);
  }
  add(attends ? config_.o_bias : has_conv_bias, linears.o, shapes.o);
  for (std::size_t i = 0; i < linears.gate_up.size(); ++i) {
    add(config_.mlp_bias, linears.gate_up[i], shapes.gate_up[i]);
  }
  for (std::size_t i = 0; i < linears.down.size(); ++i) {
    add(config_.mlp_bias, linears.down[i], shapes.down[i]);
  }
}

void RandomModel::AddExperts(LayerWeights& layer) {
  const MoeConfig& moe = config_.moe;
  layer.router = Dense(moe.num_experts, config_.hidden_size);
  if (moe.router_bias) layer.router_bias = Constant(1, moe.num_experts, 0);
  if (moe.expert_bias) layer.expert_bias = Constant(1, moe.num_experts, 0);
}

void RandomModel::AddSideExperts(SideWeights& side) {
  const std::int64_t d = config_.hidden_size;
  side.router_norm = Constant(1, d, 1 / std::sqrt(static_cast<float>(d)));
  side.expert_scale = Constant(config_.side_moe.num_experts, 1, 1);
  side.dense_norm = Ones(d);
  side.norm = Ones(d);
  side.sum_norm = Ones(d);
}

WeightView RandomModel::Weight(const std::string& format, const LinearShape& shape) {
  if (format == "bf16") return Dense(shape.out, shape.in);
  const BlockFormatInfo* blocks = ParseBlocks(format, shape.in);
  if (blocks != nullptr) return Blocks(*blocks, shape);
  const QuantizeOptions options;
  const std::size_t bytes = StorageBytes(shape.out, shape.in, options);
  const MatrixView storage = carver_->Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
  // Not read: the run that counts.
  WeightPlacement place(backend_, use_, *carver_, storage.data != nullptr);
  if (!place.read()) return place.Prepacked(PlanQuantized(shape.out, shape.in, options));
  const std::vector<BFloat16> dense = Values(0, shape.out, shape.in);
  return place.Prepacked(
      backend_.Quantize(MakeView(dense.data(), shape.out, shape.in), options, storage));
}

WeightView RandomModel::Blocks(const BlockFormatInfo& info, const LinearShape& shape) {
  BlockView view = {.format = info.format, .rows = shape.out, .cols = shape.in};
  const MatrixView storage =
      carver_->Matrix(DType::kU8, 1, static_cast<std::int64_t>(BytesOf(view)));
  WeightPlacement place(backend_, use_, *carver_, storage.data != nullptr);
  if (!place.read()) return place.Prepacked(view);
  const std::int64_t rows = std::min(kEncodedRows, shape.out);
  const std::vector<BFloat16> dense = Values(0, rows, shape.in);
  const std::size_t row_bytes = view.row_bytes();
  std::vector<std::byte> host(BytesOf(view));
  context_.ParallelFor(rows, [&](std::int64_t r, int) {
    std::vector<float> row(static_cast<std::size_t>(shape.in));
    for (std::int64_t i = 0; i < shape.in; ++i) row[i] = ToFloat(dense[r * shape.in + i]);
    const auto bad = EncodeBlocks(info.format, row.data(), shape.in / info.values, nullptr,
                                  host.data() + r * row_bytes);
    if (bad >= 0) ThrowInvalidInput("weight_formats: {} cannot hold values below 1", info.name);
  });
  for (std::int64_t r = rows; r < shape.out; ++r) {
    std::copy_n(host.data() + r % rows * row_bytes, row_bytes, host.data() + r * row_bytes);
  }
  backend_.memory().Upload(host.data(), storage.data, host.size());
  view.data = static_cast<const std::byte*>(storage.data);
  return place.Prepacked(view);
}

}  // namespace qlora::bench
