#include "bench/bench_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "ggml/encode.h"
#include "hub/known_models.h"
#include "io/json.h"
#include "model/shared_options.h"
#include "quant/layout.h"

namespace qlora::bench {
namespace {

// A short list that is read over and over: random numbers for a billion weights would take minutes.
constexpr std::size_t kValues = 65536 - 64;
// Rows of a weight that differ, where encoding a billion weights would take minutes.
constexpr std::int64_t kEncodedRows = 61;

}  // namespace

void ModelBenchOptions::Declare(OptionTable& table) {
  table.Section("Shape (default: TinyLlama-1.1B)");
  table.Add("shape", &shape, "name of a well-known model, as of plan, in place of the sizes below");
  table.Add("hidden_size", &hidden_size, "width of the residual stream");
  table.Add("intermediate_size", &intermediate_size, "width of the MLP");
  table.Add("num_hidden_layers", &num_hidden_layers, "number of layers");
  table.Add("num_attention_heads", &num_attention_heads, "number of query heads");
  table.Add("num_key_value_heads", &num_key_value_heads, "number of key and value heads");
  table.Add("vocab_size", &vocab_size, "number of tokens: rows of the embedding and of the head");
  table.Add("lora_r", &lora_r, "LoRA rank on all seven linear layers of a block");
  table.Add("load_in_4bit", &load_in_4bit, "NF4 with double quantization; false: bfloat16");
  table.Add("weight_formats", &weight_formats,
            "formats of the weights: nf4, Q4_0, Q4_K and other blocks of ggml, comma-separated; "
            "steps of several take turns");
  DeclareDevice(table, &device);
  DeclareComputeType(table, &compute_dtype);
}

std::string ModelBenchOptions::ShapeText() const {
  if (!shape.empty()) return shape;
  return fmt::format("L{} D{} F{}", num_hidden_layers, hidden_size, intermediate_size);
}

std::vector<std::string> ModelBenchOptions::Formats() const {
  return load_in_4bit ? weight_formats : std::vector<std::string>{"bf16"};
}

std::string ModelBenchOptions::ShapeOf(const std::string& base, const std::string& format) const {
  return weight_formats == ModelBenchOptions().weight_formats ? base : base + " " + format;
}

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

namespace {

DecoderConfig ConfigOfKnown(const std::string& name, std::int64_t max_positions) {
  const std::optional<Json> json = KnownModelConfig(name);
  if (!json) {
    ThrowInvalidInput("shape: expected the name of a well-known model, such as {}, found '{}'",
                      KnownModelNames().front(), name);
  }
  DecoderConfig c = ParseDecoderConfig(*json, name);
  if (c.experts().num_experts > 0) {
    ThrowInvalidInput("shape: {} has experts, which have no bench", name);
  }
  if (c.per_layer_size > 0) {
    ThrowInvalidInput("shape: {} has per-layer embeddings, which have no bench", name);
  }
  c.max_position_embeddings = max_positions;
  c.tie_word_embeddings = false;  // RandomModel has two matrices
  return c;
}

}  // namespace

DecoderConfig ConfigOf(const ModelBenchOptions& o, std::int64_t max_positions) {
  if (!o.shape.empty()) return ConfigOfKnown(o.shape, max_positions);
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = o.vocab_size;
  c.hidden_size = o.hidden_size;
  c.intermediate_size = o.intermediate_size;
  c.num_hidden_layers = o.num_hidden_layers;
  c.num_attention_heads = o.num_attention_heads;
  c.num_key_value_heads = o.num_key_value_heads;
  // Checked here, because options are numbers of the user: otherwise K could be a fraction.
  if (o.num_attention_heads < 1 || o.num_key_value_heads < 1 ||
      o.hidden_size % o.num_attention_heads != 0 ||
      o.num_attention_heads % o.num_key_value_heads != 0) {
    ThrowInvalidInput(
        "hidden_size must be a multiple of num_attention_heads, and that one of "
        "num_key_value_heads");
  }
  c.head_dim = o.hidden_size / o.num_attention_heads;
  c.max_position_embeddings = max_positions;
  c.rms_norm_eps = 1e-5f;
  c.attention_scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  RopeConfig rope;
  rope.rotary_dim = c.head_dim;
  c.ropes = {rope};
  c.layers.assign(c.num_hidden_layers, LayerConfig{});
  return c;
}

RandomModel::RandomModel(Context& context, Backend& backend, const DecoderConfig& c,
                         const std::string& format, WeightUse use, bool host_embedding)
    : context_(context), backend_(backend), format_(format), use_(use), values_(kValues) {
  const RandomKey key = MakeKey(1, RandomPlace::kTest);
  for (std::size_t i = 0; i < kValues; ++i) {
    values_[i] = ToBFloat16(2 * RandomUniform(key, i) - 1);
  }
  weights_.host_embedding = host_embedding;
  if (host_embedding) embedding_ = Values(c.vocab_size, c.hidden_size);
  // Twice: once to count the bytes, once to fill them.
  const auto layout = [&](Carver& carver) {
    carver_ = &carver;
    // The run that counts has left entries without memory.
    weights_.layers.clear();
    // Head and embedding apart: a tied head would be read from the cache of the embedding.
    weights_.embed = host_embedding
                         ? MakeView(std::as_const(embedding_).data(), c.vocab_size, c.hidden_size)
                         : Dense(c.vocab_size, c.hidden_size);
    weights_.head = Dense(c.vocab_size, c.hidden_size);
    weights_.final_norm = Ones(c.hidden_size);
    weights_.head_norm = weights_.final_norm;
    for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
      LayerWeights layer;
      layer.linears = Combine(LinearPaths(c, l), ShapeLinears(c, l),
                              [&](const std::string& path, const LinearShape& shape) {
                                return FrozenLinear{path, Weight(shape), {}};
                              });
      AddNorms(c, l, layer);
      AddState(c, c.layers[l].mixer, layer);
      weights_.layers.push_back(std::move(layer));
    }
  };
  Carver plan;
  layout(plan);
  arena_ = Arena(plan.bytes(), backend.memory());
  Carver carver(arena_);
  layout(carver);
}

std::size_t RandomModel::head_bytes() const { return BytesOf(weights_.head); }

std::vector<BFloat16> RandomModel::Values(std::int64_t rows, std::int64_t cols) const {
  std::vector<BFloat16> values(rows * cols);
  // Outputs of about the size of inputs: activations of 22 layers neither vanish nor overflow.
  const float deviation = 1 / std::sqrt(static_cast<float>(cols));
  context_.ParallelFor(rows, [&](std::int64_t r, int) {
    BFloat16* row = values.data() + r * cols;
    // Each row begins elsewhere, so that no two neighbours are equal.
    auto at = static_cast<std::size_t>(r) * 977 % kValues;
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
  Upload(backend_.memory(), std::span<const BFloat16>(Values(rows, cols)), m);
  return m;
}

ConstMatrixView RandomModel::Ones(std::int64_t size) { return Constant(1, size, 1); }

// Norms of ones, as models begin; the values do not change the cost.
void RandomModel::AddNorms(const DecoderConfig& c, std::int64_t l, LayerWeights& layer) {
  if (c.input_norms) {
    layer.input_norm = Ones(c.hidden_size);
    layer.mlp_norm = Ones(c.hidden_size);
  }
  if (c.post_norms) {
    layer.post_attn_norm = Ones(c.hidden_size);
    layer.post_mlp_norm = Ones(c.hidden_size);
  }
  if (c.layers[l].mixer == Mixer::kAttention && c.qk_norm != QkNorm::kNone) {
    layer.q_norm = Ones(c.q_norm_size(l));
    layer.k_norm = Ones(c.k_norm_size(l));
  }
  if (c.value_norm) layer.v_norm = Ones(c.layer(l).head_dim);
  if (c.layer_scalar) layer.scale = Ones(c.hidden_size);
}

void RandomModel::AddState(const DecoderConfig& c, Mixer mixer, LayerWeights& layer) {
  if (mixer == Mixer::kAttention) return;
  const bool is_delta = mixer == Mixer::kDeltaRule;
  const std::int64_t channels = is_delta ? c.delta_conv_features() : c.hidden_size;
  layer.conv.weight = Constant(channels, c.conv_taps, 1 / static_cast<float>(c.conv_taps));
  if (!is_delta) return;
  layer.delta_rule.rate = Constant(1, c.delta_rule.heads, -1);
  layer.delta_rule.dt_bias = Ones(c.delta_rule.heads);
  layer.delta_rule.norm = Ones(c.delta_rule.value_dim);
}

ConstMatrixView RandomModel::Constant(std::int64_t rows, std::int64_t cols, float value) {
  const MatrixView m = carver_->Matrix(DType::kF32, rows, cols);
  if (m.data == nullptr) return m;
  Upload(backend_.memory(), std::span<const float>(std::vector<float>(rows * cols, value)), m);
  return m;
}

WeightView RandomModel::Weight(const LinearShape& shape) {
  if (format_ == "bf16") {
    const ConstMatrixView dense = Dense(shape.out, shape.in);
    if (dense.data != nullptr) {
      linear_bytes_ += BytesOf(dense.dtype, shape.out * shape.in);
    }
    return dense;
  }
  const BlockFormatInfo* blocks = ParseBlocks(format_, shape.in);
  if (blocks != nullptr) return Blocks(*blocks, shape);
  const QuantizeOptions options;
  const std::size_t bytes = StorageBytes(shape.out, shape.in, options);
  const MatrixView storage = carver_->Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
  const QuantizedView plan = PlanQuantized(shape.out, shape.in, options);
  // As models are loaded: only generation reads weights for few rows.
  const std::size_t prepacked_bytes =
      use_ == WeightUse::kGeneration ? backend_.PrepackedBytes(plan) : 0;
  // Carved even where it is empty, so that both runs carve the same sequence.
  const MatrixView prepacked =
      carver_->Matrix(DType::kU8, 1, static_cast<std::int64_t>(prepacked_bytes));
  // The run that counts.
  if (storage.data == nullptr) return {};
  const std::vector<BFloat16> dense = Values(shape.out, shape.in);
  const QuantizedView view =
      backend_.Quantize(MakeView(dense.data(), shape.out, shape.in), options, storage);
  // The bytes that one pass over the weights reads: codes and scales, without the prepacked copy.
  linear_bytes_ += BytesOf(view);
  if (prepacked_bytes == 0) return view;
  auto* data = static_cast<std::byte*>(prepacked.data);
  backend_.Prepack(view, data);
  return {view, data};
}

WeightView RandomModel::Blocks(const BlockFormatInfo& info, const LinearShape& shape) {
  if (!backend_.Reads(info.format)) {
    ThrowInvalidInput("weight_formats: this device does not multiply with {}; use nf4", info.name);
  }
  BlockView view = {.format = info.format, .rows = shape.out, .cols = shape.in};
  const MatrixView storage =
      carver_->Matrix(DType::kU8, 1, static_cast<std::int64_t>(BytesOf(view)));
  if (storage.data == nullptr) return {};
  const std::int64_t rows = std::min(kEncodedRows, shape.out);
  const std::vector<BFloat16> dense = Values(rows, shape.in);
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
  linear_bytes_ += host.size();
  return view;
}

LoraAdapter RandomAdapter(const ModelBenchOptions& options, const DecoderConfig& config,
                          Memory& memory) {
  AdapterConfig adapter;
  adapter.r = options.lora_r;
  adapter.lora_alpha = static_cast<double>(2 * options.lora_r);
  // All seven kinds, as the QLoRA paper (arXiv:2305.14314) adapts them.
  adapter.target_modules = std::string("all-linear");
  return LoraAdapter::Create(adapter, config, memory, 1);
}

}  // namespace qlora::bench
