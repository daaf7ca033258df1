#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <set>

#include "base/check.h"
#include "base/matrix.h"
#include "io/bnb.h"
#include "io/float_encoding.h"
#include "model/checkpoint.h"
#include "model/checkpoint_tensors.h"
#include "model/weight_placement.h"
#include "quant/layout.h"

namespace qlora {
namespace {

// Reads tensors of one checkpoint into DecoderWeights. Runs twice, with the same calls in the same
// order: first with a carver that counts, which only looks at headers, then with memory. The
// second run therefore takes the memory that the first one counted.
class Loader {
 public:
  Loader(Context& context, Backend& backend, const DecoderConfig& config,
         const LoadOptions& options, CheckpointTensors& tensors)
      : context_(context),
        backend_(backend),
        config_(config),
        options_(options),
        tensors_(tensors),
        reader_(tensors.reader()) {}

  // Everything but the owners.
  void Run(Carver& carver, bool read, DecoderWeights& out) {
    place_.emplace(backend_, options_.use, carver, read);
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
    tensors_.Begin(read ? options_.progress : nullptr);
    embedding_ = 0;
    owners_.clear();
    out.layers.clear();
    Embedding(out);
    const std::string final_norm =
        fmt::format("{}{}.weight", tensors_.prefix(), config_.names.final_norm);
    out.final_norm = Norm(final_norm, config_.hidden_size);
    out.head_norm = config_.logit_scale == 1
                        ? out.final_norm
                        : Norm(final_norm, config_.hidden_size, config_.logit_scale);
    // A tied head is the embedding itself, in the file and in memory.
    out.head = config_.tie_word_embeddings ? out.embed : Head();
    if (config_.per_layer_size > 0) PerLayerEmbedding(out);
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) out.layers.push_back(Layer(l));
    out.sizes = {carver.bytes(),
                 place_->mapped(),
                 embedding_,
                 stored_4bit_,
                 tensors_.parameters(),
                 {block_formats_.begin(), block_formats_.end()},
                 tensors_.Notes(config_)};
  }

  std::vector<std::shared_ptr<const void>> TakeOwners() { return std::move(owners_); }

 private:
  bool read() const { return place_->read(); }

  // A matrix as the file stores it: dense, or in blocks.
  WeightView HostView(const TensorInfo& tensor, const void* data, std::int64_t rows,
                      std::int64_t cols) const {
    if (!tensor.dtype.is_blocks()) return ConstMatrixView{data, tensor.dtype, rows, cols, cols};
    const BlockFormat format = tensor.dtype.format;
    if (!backend_.Reads(format)) {
      ThrowInvalidInput(
          "{}: tensor '{}' is stored as {}, which --device cuda does not read; use --device cpu, "
          "or a checkpoint in 16 bits, which is quantized to 4 bits as it is loaded",
          reader_.FileOf(tensor), StoredName(tensor), InfoOf(format).name);
    }
    return BlockView{format, static_cast<const std::byte*>(data), rows, cols};
  }

  // Rows [first, first + count) of a matrix in host memory; null: of a plan.
  WeightView HostRows(const TensorInfo& tensor, const void* data, std::int64_t first,
                      std::int64_t count, std::int64_t cols) const {
    const auto* bytes = static_cast<const std::byte*>(data);
    if (bytes != nullptr) bytes += BytesOf(tensor.dtype, first * cols);
    return HostView(tensor, bytes, count, cols);
  }

  WeightView AsStored(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols,
                      WeightUse use) {
    // Values in another order than the file's are a copy, which the plan does not need and which
    // goes away.
    const bool is_copied = reader_.IsCopied(tensor);
    const void* data = is_copied && !read() ? nullptr : reader_.Bytes(tensor).data();
    const WeightView host = HostView(tensor, data, rows, cols);
    CheckFinite(host, tensor);
    const std::size_t before = place_->mapped();
    const WeightView placed = is_copied ? place_->Copy(host) : place_->Place(host, use);
    if (read() && place_->mapped() == before) reader_.Release(tensor);
    return placed;
  }

  // Stored values are checked as they are loaded, so that a damaged file is not found as a bad
  // loss.
  void CheckFinite(const WeightView& weight, const TensorInfo& tensor) {
    if (!read()) return;
    const std::int64_t bad = FirstNonFinite(context_, weight);
    if (bad < 0) return;
    ThrowNotFinite(tensor, bad);
  }

  [[noreturn]] void ThrowNotFinite(const TensorInfo& tensor, std::int64_t element) const {
    const StoredValue bad = reader_.StoredAt(tensor, element);
    ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at {}{}", reader_.FileOf(tensor),
                      bad.tensor->name, bad.Place(),
                      tensor.dtype.is_blocks() ? " or behind it" : "");
  }

  // As the file names it.
  const std::string& StoredName(const TensorInfo& tensor) const {
    return reader_.StoredAt(tensor, 0).tensor->name;
  }

  // (rows, D), in place. Its pages come back as its rows are used.
  ConstMatrixView InFile(const TensorInfo& tensor, std::int64_t rows) {
    const ConstMatrixView host{reader_.Bytes(tensor).data(), tensor.dtype, rows,
                               config_.hidden_size, config_.hidden_size};
    CheckFinite(host, tensor);
    if (read()) reader_.Release(tensor);
    return host;
  }

  // (rows, D), as the file stores it.
  WeightView Table(const std::string& name, std::int64_t rows, WeightUse use) {
    return Table(tensors_.Get(name, {rows, config_.hidden_size}), rows, use);
  }
  WeightView Table(const TensorInfo& tensor, std::int64_t rows, WeightUse use) {
    const WeightView table = AsStored(tensor, rows, config_.hidden_size, use);
    // The pages of rows that are used in place come back as the rows are used.
    if (read() && use == WeightUse::kTraining) reader_.Release(tensor);
    return table;
  }

  // A head that is not tied. One in 4 bits becomes dense.
  WeightView Head() {
    const std::string name = HeadName(reader_);
    if (!HasQuantState(reader_, name)) return Table(name, config_.vocab_size, options_.use);
    const BnbMatrix stored = tensors_.GetFourBit(name, config_.vocab_size, config_.hidden_size);
    const QuantizedView& view = stored.matrix.view();
    const MatrixView out = place_->carver().Matrix(stored.layout.dtype, view.rows, view.cols);
    if (!read()) return out;
    const std::int64_t piece = std::max<std::int64_t>(1, kPieceValues / view.cols);
    std::vector<float> values;
    std::vector<std::byte> bytes;
    for (std::int64_t row = 0; row < view.rows; row += piece) {
      const std::int64_t rows = std::min(piece, view.rows - row);
      values.resize(static_cast<std::size_t>(rows * view.cols));
      DequantizeRows(view, row, {values.data(), DType::kF32, rows, view.cols, view.cols});
      bytes.resize(BytesOf(out.dtype, rows * view.cols));
      if (EncodeFloats(out.dtype, values, bytes) >= 0) {
        ThrowInvalidInput("{}: tensor '{}' holds a value that does not fit into {}",
                          reader_.FileOf(*reader_.Find(name)), name, NameOf(out.dtype));
      }
      backend_.memory().Upload(bytes.data(), Rows(out, row, rows).data, bytes.size());
    }
    ReleaseBnb(reader_, name);
    return out;
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
    if (reader_.IsCopied(tensor)) {
      ThrowInvalidInput("{}: '{}' must be stored as plain values or blocks", reader_.FileOf(tensor),
                        StoredName(tensor));
    }
    const void* const data = reader_.Bytes(tensor).data();
    const WeightView host = HostView(tensor, data, rows, cols);
    // Its pages are given back as it is read, and come back as its rows are used.
    const std::int64_t piece = std::max<std::int64_t>(1, 16 * kPieceValues / cols);
    for (std::int64_t row = 0; read() && row < rows; row += piece) {
      const std::int64_t count = std::min(piece, rows - row);
      const std::int64_t bad = FirstNonFinite(context_, HostRows(tensor, data, row, count, cols));
      if (bad >= 0) ThrowNotFinite(tensor, row * cols + bad);
      reader_.Release(tensor);
    }
    // Ops of the host read the rows in place.
    const bool copies = IsHost(backend_.memory()) && !IsAligned(host);
    out.per_layer_embed = copies ? place_->Copy(host) : host;
    const std::int64_t size = config_.per_layer_size;
    const TensorInfo& norm =
        tensors_.Get(tensors_.prefix() + "per_layer_projection_norm.weight", {size});
    out.per_layer_norm = Wide(norm, 1, size, 0, 1);
    out.per_layer_half = Wide(norm, 1, size, 0, std::numbers::sqrt2 / 2);
  }

  // A vector in the wide type, plus `shift`, times `factor`.
  ConstMatrixView Wide(const std::string& name, std::int64_t size, double shift = 0,
                       double factor = 1) {
    return Wide(tensors_.Get(name, {size}), 1, size, shift, factor);
  }
  // The same of a small matrix that no product reads.
  ConstMatrixView Wide(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols, double shift,
                       double factor) {
    if (tensor.dtype.is_blocks()) {
      ThrowInvalidInput("{}: '{}' is stored as {}, expected F32, F16 or BF16",
                        reader_.FileOf(tensor), StoredName(tensor), NameOf(tensor.dtype));
    }
    const MatrixView out = place_->carver().Matrix(options_.wide, rows, cols);
    if (!read()) return out;
    const std::int64_t size = rows * cols;
    std::vector<std::byte> host(BytesOf(options_.wide, size));
    const MatrixView values{host.data(), options_.wide, 1, size, size};
    ConvertToWide(reader_.Bytes(tensor).data(), tensor.dtype, shift, values, factor);
    for (std::int64_t i = 0; i < size; ++i) {
      if (!std::isfinite(RealAt(values, i))) ThrowNotFinite(tensor, i);
    }
    backend_.memory().Upload(host.data(), out.data, host.size());
    return out;
  }

  // A vector of equal values.
  ConstMatrixView Constant(std::int64_t size, float value) {
    const MatrixView out = place_->carver().Matrix(options_.wide, 1, size);
    if (read()) UploadWide(backend_.memory(), std::vector<float>(size, value), out);
    return out;
  }

  // The number by which the output of a layer is multiplied, for each channel.
  ConstMatrixView LayerScale(const std::string& name) {
    const TensorInfo& tensor = tensors_.Get(name, {1});
    float value = 1;
    if (read()) {
      DecodeFloats(tensor.dtype, reader_.Bytes(tensor), std::span(&value, 1));
      if (!std::isfinite(value)) ThrowNotFinite(tensor, 0);
    }
    return Constant(config_.hidden_size, value);
  }

  // -exp(A_log), which a GGUF file holds in the place of A_log.
  ConstMatrixView Rate(const std::string& path) {
    const std::int64_t heads = config_.delta_rule.heads;
    if (reader_.Find(path + "rate") != nullptr) return Wide(path + "rate", heads);
    const TensorInfo& tensor = tensors_.Get(path + "A_log", {heads});
    const MatrixView out = place_->carver().Matrix(options_.wide, 1, heads);
    if (!read()) return out;
    std::vector<float> values(static_cast<std::size_t>(heads));
    DecodeFloats(tensor.dtype, reader_.Bytes(tensor), values);
    for (float& value : values) value = static_cast<float>(-std::exp(double{value}));
    for (std::int64_t h = 0; h < heads; ++h) {
      if (!std::isfinite(values[h])) ThrowNotFinite(tensor, h);
    }
    UploadWide(backend_.memory(), values, out);
    return out;
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

  // A weight (O, I) of the layers: as the checkpoint stores it, or quantized here from a dense
  // tensor of a checkpoint that is not quantized itself.
  WeightView Weight(const std::string& path, const LinearShape& shape) {
    const std::string name = path + ".weight";
    if (HasQuantState(reader_, name)) return Stored(name, shape);
    const TensorInfo& tensor = tensors_.Get(name, {shape.out, shape.in});
    if (tensor.dtype.is_blocks()) block_formats_.insert(NameOf(tensor.dtype));
    if (!options_.load_in_4bit || tensors_.is_quantized()) {
      return AsStored(tensor, shape.out, shape.in, options_.use);
    }
    QuantizeOptions quantize = options_.quantize;
    quantize.name = StoredName(tensor);
    const std::size_t bytes = StorageBytes(shape.out, shape.in, quantize);
    const MatrixView storage =
        place_->carver().Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
    if (!read()) return place_->Prepacked(PlanQuantized(shape.out, shape.in, quantize));
    std::vector<std::byte> copy;
    const std::byte* values = AlignedValues(reader_.Bytes(tensor), tensor.dtype, copy);
    const ConstMatrixView dense{values, tensor.dtype, shape.out, shape.in, shape.in};
    const QuantizedView view = Quantized(tensor, dense, quantize, storage);
    // The dense values are not needed again: one dense tensor at a time is in memory.
    reader_.Release(tensor);
    return place_->Prepacked(view);
  }

  QuantizedView Quantized(const TensorInfo& tensor, const ConstMatrixView& dense,
                          const QuantizeOptions& options, const MatrixView& storage) {
    try {
      return backend_.Quantize(dense, options, storage);
    } catch (const Error&) {
      // Quantize knows the rows of the model, not those of the file.
      CheckFinite(dense, tensor);
      throw;
    }
  }

  // Matrices (O, I) that one tensor (E, O, I) holds, as Weight does with one.
  std::vector<FrozenLinear> Stack(const std::string& name, const LinearShape& shape) {
    const std::int64_t experts = config_.side_moe.num_experts;
    const TensorInfo& tensor = tensors_.Get(name, {experts, shape.out, shape.in});
    const bool is_copied = reader_.IsCopied(tensor);
    const void* data = is_copied && !read() ? nullptr : reader_.Bytes(tensor).data();
    const WeightView all = HostView(tensor, data, experts * shape.out, shape.in);
    if (tensor.dtype.is_blocks()) block_formats_.insert(NameOf(tensor.dtype));
    const bool quantizes = options_.load_in_4bit && !tensors_.is_quantized();
    if (!quantizes) CheckFinite(all, tensor);
    std::vector<FrozenLinear> linears;
    for (std::int64_t e = 0; e < experts; ++e) {
      linears.push_back({fmt::format("{}.{}", name, e), {}, {}});
      const WeightView one = HostRows(tensor, data, e * shape.out, shape.out, shape.in);
      if (!quantizes) {
        linears.back().weight = is_copied ? place_->Copy(one) : place_->Place(one, options_.use);
        continue;
      }
      const MatrixView storage = place_->carver().Matrix(
          DType::kU8, 1,
          static_cast<std::int64_t>(StorageBytes(shape.out, shape.in, options_.quantize)));
      linears.back().weight =
          place_->Prepacked(read() ? QuantizedPart(tensor, one.dense, storage)
                                   : PlanQuantized(shape.out, shape.in, options_.quantize));
    }
    if (read() && quantizes) reader_.Release(tensor);
    return linears;
  }

  // One matrix of a tensor of several.
  QuantizedView QuantizedPart(const TensorInfo& tensor, ConstMatrixView part,
                              const MatrixView& storage) {
    std::vector<std::byte> copy;
    part.data = AlignedValues(
        {static_cast<const std::byte*>(part.data), BytesOf(part.dtype, part.rows * part.cols)},
        part.dtype, copy);
    QuantizeOptions quantize = options_.quantize;
    quantize.name = StoredName(tensor);
    return Quantized(tensor, part, quantize, storage);
  }

  void SideExperts(const std::string& layer, SideWeights& out) {
    const std::int64_t d = config_.hidden_size;
    const std::int64_t m = config_.side_intermediate_size;
    const std::int64_t experts = config_.side_moe.num_experts;
    out.router = Table(layer + "router.proj.weight", experts, options_.use);
    out.router_norm = Wide(layer + "router.scale", d, 0, 1 / std::sqrt(static_cast<double>(d)));
    out.expert_scale = Reshape(Wide(layer + "router.per_expert_scale", experts), 1);
    out.dense_norm = Norm(layer + "post_feedforward_layernorm_1.weight", d);
    out.norm = Norm(layer + "pre_feedforward_layernorm_2.weight", d);
    out.sum_norm = Norm(layer + "post_feedforward_layernorm_2.weight", d);
    out.gate_up = Stack(layer + "experts.gate_up_proj", {2 * m, d});
    out.down = Stack(layer + "experts.down_proj", {d, m});
  }

  // A weight that the checkpoint holds in 4 bits.
  WeightView Stored(const std::string& name, const LinearShape& shape) {
    BnbMatrix stored = tensors_.GetFourBit(name, shape.out, shape.in);
    stored_4bit_ = {stored.layout.type == QuantType::kFp4 ? "fp4" : "nf4",
                    stored.layout.double_quant, stored.layout.block_size};
    const QuantizedView view = stored.matrix.view();
    // Small arrays that the file does not align are copies, which live as long as the weights.
    owners_.push_back(std::make_shared<BnbMatrix>(std::move(stored)));
    const WeightView weight = place_->PlaceFourBit(view);
    // Pages that were not copied are small and are read again, as are rows that DoRA reads, once.
    if (read() && place_->generates()) ReleaseBnb(reader_, name);
    return weight;
  }

  // A weight with its bias, which only some families have.
  FrozenLinear Linear(const std::string& path, const LinearShape& shape, bool bias) {
    FrozenLinear linear{path, Weight(path, shape), {}};
    if (bias) linear.bias = Wide(path + ".bias", shape.out);
    return linear;
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
    if (config_.side_moe.num_experts > 0) SideExperts(layer, out.side);
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

  Context& context_;
  Backend& backend_;
  const DecoderConfig& config_;
  const LoadOptions& options_;
  CheckpointTensors& tensors_;
  const TensorReader& reader_;
  std::optional<WeightPlacement> place_;  // of the current run
  std::size_t embedding_ = 0;
  std::optional<QuantizationFields> stored_4bit_;
  std::set<std::string> block_formats_;
  std::vector<std::shared_ptr<const void>> owners_;
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
