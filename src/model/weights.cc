#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/matrix.h"
#include "io/bnb.h"
#include "io/checkpoint_names.h"
#include "io/float_encoding.h"
#include "model/checkpoint.h"
#include "quant/first_non_finite.h"
#include "quant/layout.h"

namespace qlora {
namespace {

// "[2, 3]", for messages.
std::string ShapeText(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Replaces the files of a checkpoint when only its shape is known.
class NoFiles : public TensorReader {
 public:
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view) const override { return nullptr; }
  std::span<const std::byte> Bytes(const TensorInfo&) const override { return {}; }
  void Release(const TensorInfo&) const override {}
  std::string FileOf(const TensorInfo&) const override { return ""; }
  const StringMap& metadata() const override { return metadata_; }

 private:
  std::vector<TensorInfo> tensors_;
  StringMap metadata_;
};

// ---- The loader.

// Reads tensors of one checkpoint into DecoderWeights. Runs twice, with the same calls in the same
// order: first with a carver that counts, which only looks at headers, then with memory. The
// second run therefore takes the memory that the first one counted.
class Loader {
 public:
  Loader(Context& context, Backend& backend, const DecoderConfig& config,
         const LoadOptions& options, TensorReader& reader)
      : context_(context), backend_(backend), config_(config), options_(options), reader_(reader) {
    prefix_ = DecoderPrefix(reader);
    is_4bit_ = HoldsBnb(reader);
  }

  // Everything but the owners.
  void Run(Carver& carver, bool read, DecoderWeights& out) {
    carver_ = &carver;
    read_ = read;
    total_ = done_;
    done_ = 0;
    mapped_ = 0;
    embedding_ = 0;
    parameters_ = 0;
    out.layers.clear();
    Embedding(out);
    out.final_norm = Norm(prefix_ + "norm.weight", config_.hidden_size);
    // A tied head is the embedding itself, in the file and in memory.
    out.head = config_.tie_word_embeddings ? out.embed : Head();
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) out.layers.push_back(Layer(l));
  }

  // For planning: assumes that every tensor exists, in bfloat16 and in the requested shape.
  void Imagine() { imagines_ = true; }

  // Sizes counted by the last run.
  WeightSizes Sizes() const {
    return {carver_->bytes(), mapped_, embedding_, stored_4bit_, parameters_, Notes()};
  }
  std::vector<std::shared_ptr<const void>> TakeOwners() { return std::move(owners_); }

 private:
  std::vector<std::string> Notes() const {
    std::vector<std::string> notes;
    if (config_.has_own_head) {
      notes.push_back(fmt::format(
          "config.json says tie_word_embeddings, but '{}' of the checkpoint differs from "
          "'{}embed_tokens.weight': the head of the checkpoint is used, as transformers 5 does",
          HeadName(reader_), prefix_));
    }
    std::vector<std::string> unused;
    for (const TensorInfo& tensor : reader_.tensors()) {
      if (!tensor.name.starts_with(prefix_) || !SplitDecoderName(tensor.name)) continue;
      const std::string_view weight = BnbWeightOf(tensor.name);
      const bool used = used_.contains(weight.empty() ? tensor.name : std::string(weight));
      // The frequencies of old Llama checkpoints follow from config.json.
      if (!used && !tensor.name.ends_with("rotary_emb.inv_freq")) unused.push_back(tensor.name);
    }
    if (!unused.empty()) {
      const std::size_t shown = std::min<std::size_t>(unused.size(), 3);
      notes.push_back(fmt::format(
          "the model does not use {} tensors of the checkpoint: {}{}", unused.size(),
          fmt::join(unused.begin(), unused.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
          unused.size() > shown ? " ..." : ""));
    }
    for (const UnreadTensor& tensor : reader_.unread()) {
      if (reader_.Find(tensor.name) != nullptr) continue;
      notes.push_back("not read, and not needed: " + tensor.reason);
    }
    // One line for many: a checkpoint may have such a tensor in each layer.
    constexpr std::size_t kMost = 4;
    if (notes.size() > kMost) {
      const std::size_t more = notes.size() - kMost;
      notes.resize(kMost);
      notes.back() += fmt::format(" (and {} more tensors)", more);
    }
    return notes;
  }

  [[noreturn]] void ThrowMissing(const std::string& name,
                                 const std::vector<std::int64_t>& shape) const {
    for (const UnreadTensor& tensor : reader_.unread()) {
      if (tensor.name == name) ThrowInvalidInput("{}; the model needs it", tensor.reason);
    }
    const auto& tensors = reader_.tensors();
    ThrowInvalidInput(
        "tensor '{}' is missing from the checkpoint, expected with shape {}; is config.json of "
        "the same model, and the download complete?{}",
        name, ShapeText(shape),
        tensors.empty() ? "" : fmt::format(" A tensor that it has: '{}'", tensors.front().name));
  }

  // The tensor of this name. Errors: InvalidInput when it is missing, has another shape, or is not
  // floating point.
  const TensorInfo& Get(const std::string& name, const std::vector<std::int64_t>& shape) {
    if (imagines_) {
      imagined_ = {.name = name, .dtype = DType::kBF16, .shape = shape};
      parameters_ += imagined_.elements();
      return imagined_;
    }
    const TensorInfo* tensor = reader_.Find(name);
    if (tensor == nullptr) ThrowMissing(name, shape);
    used_.insert(name);
    if (tensor->shape != shape) {
      ThrowInvalidInput("{}: tensor '{}' has shape {}, config.json expects {}",
                        reader_.FileOf(*tensor), name, ShapeText(tensor->shape), ShapeText(shape));
    }
    if (!IsFloat(tensor->dtype)) {
      ThrowInvalidInput("{}: tensor '{}' is {}, expected F32, F16 or BF16", reader_.FileOf(*tensor),
                        name, NameOf(tensor->dtype));
    }
    parameters_ += tensor->elements();
    Progress();
    return *tensor;
  }

  void Progress() {
    ++done_;
    if (read_ && options_.progress) options_.progress(done_, total_);
  }

  bool generates() const { return options_.use == WeightUse::kGeneration; }

  // A part of a weight, of the file or of `owners_`, as the backend reads it.
  template <typename T>
  T Adopt(T data, std::size_t bytes, WeightUse use) {
    const std::size_t before = carver_->bytes();
    // The backend carves memory for a copy, or reads the pages of the file, which count as mapped.
    const void* adopted = backend_.Adopt(data, bytes, use, *carver_);
    if (carver_->bytes() == before) mapped_ += bytes;
    return static_cast<T>(adopted);
  }

  // The tensor as a matrix of its file's dtype. A tensor that is misaligned in the file is copied
  // first.
  ConstMatrixView Dense(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols,
                        WeightUse use) {
    const bool is_copied = reader_.IsCopied(tensor);
    // The plan does not need the values of a copy.
    const void* data = is_copied && !read_ ? nullptr : reader_.Bytes(tensor).data();
    ConstMatrixView host{data, tensor.dtype, rows, cols, cols};
    CheckFinite(host, tensor);
    // A use that makes the backend copy, to memory that is aligned and stays.
    if (is_copied || !IsAligned(host.data, tensor.dtype)) use = WeightUse::kGeneration;
    const std::size_t before = mapped_;
    const ConstMatrixView dense{Adopt(host.data, tensor.bytes(), use), tensor.dtype, rows, cols,
                                cols};
    if (read_ && mapped_ == before) reader_.Release(tensor);
    return dense;
  }

  // Dense weights are checked as they are loaded, so that a damaged file is not found as a bad
  // loss.
  void CheckFinite(const ConstMatrixView& m, const TensorInfo& tensor) {
    if (!read_) return;
    const std::int64_t bad = FirstNonFinite(context_, m);
    if (bad < 0) return;
    ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at row {}, column {}",
                      reader_.FileOf(tensor), tensor.name, bad / m.cols, bad % m.cols);
  }

  // (rows, D), in place. Its pages come back as its rows are used.
  ConstMatrixView InFile(const TensorInfo& tensor, std::int64_t rows) {
    const ConstMatrixView host{reader_.Bytes(tensor).data(), tensor.dtype, rows,
                               config_.hidden_size, config_.hidden_size};
    CheckFinite(host, tensor);
    if (read_) reader_.Release(tensor);
    return host;
  }

  // (rows, D), in the dtype of the file.
  ConstMatrixView Table(const std::string& name, std::int64_t rows, WeightUse use) {
    return Table(Get(name, {rows, config_.hidden_size}), rows, use);
  }
  ConstMatrixView Table(const TensorInfo& tensor, std::int64_t rows, WeightUse use) {
    const ConstMatrixView table = Dense(tensor, rows, config_.hidden_size, use);
    // The pages of rows that are used in place come back as the rows are used.
    if (read_ && use == WeightUse::kTraining) reader_.Release(tensor);
    return table;
  }

  // A head that is not tied. One in 4 bits becomes dense: passes read it in pieces of rows.
  ConstMatrixView Head() {
    const std::string name = HeadName(reader_);
    if (!HasQuantState(reader_, name)) return Table(name, config_.vocab_size, options_.use);
    Progress();
    used_.insert(name);
    const BnbMatrix stored = ReadBnb(reader_, name);
    const QuantizedView& view = stored.matrix.view();
    CheckStoredShape(name, view, {config_.vocab_size, config_.hidden_size});
    parameters_ += view.size();
    const MatrixView out = carver_->Matrix(stored.layout.dtype, view.rows, view.cols);
    if (!read_) return out;
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

  // Errors: InvalidInput for a 4-bit weight of another shape.
  void CheckStoredShape(const std::string& name, const QuantizedView& view,
                        const LinearShape& shape) const {
    if (view.rows == shape.out && view.cols == shape.in) return;
    ThrowInvalidInput("{}: the 4-bit tensor '{}' has shape [{}, {}], config.json expects [{}, {}]",
                      reader_.FileOf(*reader_.Find(name)), name, view.rows, view.cols, shape.out,
                      shape.in);
  }

  void Embedding(DecoderWeights& out) {
    const std::string name = prefix_ + "embed_tokens.weight";
    const bool tied = config_.tie_word_embeddings;
    const TensorInfo& tensor = Get(name, {config_.vocab_size, config_.hidden_size});
    // Rows of more than 16 bits would not fit into the buffer that a pass uploads them to.
    const bool may_stay = !tied && !IsHost(backend_.memory()) && BytesOf(tensor.dtype, 1) <= 2;
    out.host_embedding = may_stay && options_.host_embedding;
    const std::size_t before = carver_->bytes();
    out.embed = out.host_embedding
                    ? InFile(tensor, config_.vocab_size)
                    : Table(tensor, config_.vocab_size, tied ? options_.use : WeightUse::kTraining);
    if (may_stay) {
      embedding_ = out.host_embedding ? tensor.bytes() : carver_->bytes() - before;
    }
  }

  // A vector in the wide type, plus `shift`.
  ConstMatrixView Wide(const std::string& name, std::int64_t size, double shift) {
    const TensorInfo& tensor = Get(name, {size});
    const MatrixView out = carver_->Matrix(options_.wide, 1, size);
    if (!read_) return out;
    std::vector<std::byte> host(BytesOf(options_.wide, size));
    const MatrixView values{host.data(), options_.wide, 1, size, size};
    ConvertToWide(reader_.Bytes(tensor).data(), tensor.dtype, shift, values);
    for (std::int64_t i = 0; i < size; ++i) {
      if (!std::isfinite(RealAt(values, i))) {
        ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", reader_.FileOf(tensor),
                          name, i);
      }
    }
    backend_.memory().Upload(host.data(), out.data, host.size());
    return out;
  }

  // Gemma stores w - 1; 1 is added here, so that the ops know one form of norm.
  ConstMatrixView Norm(const std::string& name, std::int64_t size) {
    return Wide(name, size, config_.one_plus_norm ? 1 : 0);
  }

  // A weight (O, I) of the blocks, in one of three forms: 4 bits as the checkpoint stores it, dense
  // as stored, or quantized here from a dense tensor. A checkpoint that is 4-bit itself keeps the
  // linears that it left dense.
  WeightView Weight(const std::string& path, const LinearShape& shape) {
    const std::string name = path + ".weight";
    if (HasQuantState(reader_, name)) return Stored(name, shape);
    const TensorInfo& tensor = Get(name, {shape.out, shape.in});
    if (!options_.load_in_4bit || is_4bit_) {
      return Dense(tensor, shape.out, shape.in, options_.use);
    }
    QuantizeOptions quantize = options_.quantize;
    quantize.name = name;
    const std::size_t bytes = StorageBytes(shape.out, shape.in, quantize);
    const MatrixView storage = carver_->Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
    if (!read_) {
      CopyPrepacked(PlanQuantized(shape.out, shape.in, quantize));
      return {};
    }
    std::vector<std::byte> copy;
    const std::byte* values = AlignedValues(reader_.Bytes(tensor), tensor.dtype, copy);
    const ConstMatrixView dense{values, tensor.dtype, shape.out, shape.in, shape.in};
    const QuantizedView view = backend_.Quantize(dense, quantize, storage);
    // The dense values are not needed again: one dense tensor at a time is in memory.
    reader_.Release(tensor);
    return {view, CopyPrepacked(view).value_or(nullptr)};
  }

  // A copy of a 4-bit weight in the order of the backend, if it has one; null in the first run.
  std::optional<const std::byte*> CopyPrepacked(const QuantizedView& view) {
    const std::size_t bytes = generates() ? backend_.PrepackedBytes(view) : 0;
    if (bytes == 0) return std::nullopt;
    const MatrixView copy = carver_->Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
    auto* data = static_cast<std::byte*>(copy.data);
    if (read_) backend_.Prepack(view, data);
    return data;
  }

  // A weight that the checkpoint holds in 4 bits.
  WeightView Stored(const std::string& name, const LinearShape& shape) {
    Progress();
    used_.insert(name);
    BnbMatrix stored = ReadBnb(reader_, name);
    stored_4bit_ = {stored.layout.type == QuantType::kFp4 ? "fp4" : "nf4",
                    stored.layout.double_quant, stored.layout.block_size};
    QuantizedView view = stored.matrix.view();
    parameters_ += view.size();
    CheckStoredShape(name, view, shape);
    // Small arrays that the file does not align are copies, which live as long as the weights.
    owners_.push_back(std::make_shared<BnbMatrix>(std::move(stored)));
    const auto packed = static_cast<std::size_t>(PackedBytes(view.size()));
    const std::size_t scales = view.blocks() * ScaleBytes(view.scale_type);
    const bool prepacks = generates() && backend_.PrepackedBytes(view) > 0;
    const std::size_t mapped_before = mapped_;
    // A prepacked copy takes the place of the values and scales.
    const WeightUse use = prepacks ? WeightUse::kTraining : options_.use;
    view.packed = Adopt(view.packed, packed, use);
    view.scales = Adopt(view.scales, scales, use);
    if (prepacks) mapped_ = mapped_before;
    view.code = Adopt(view.code, 16 * sizeof(float), WeightUse::kTraining);
    if (view.scale_type == ScaleType::kDoubleBnb) {
      const std::int64_t nested =
          (view.blocks() + view.nested.block_size - 1) / view.nested.block_size;
      view.nested.absmax = Adopt(view.nested.absmax, nested * sizeof(float), WeightUse::kTraining);
      view.nested.map = Adopt(view.nested.map, 256 * sizeof(float), WeightUse::kTraining);
    }
    WeightView weight(view, CopyPrepacked(view).value_or(nullptr));
    // Pages that were not copied are small and are read again, as are rows that DoRA reads, once.
    if (read_ && generates()) ReleaseBnb(reader_, name);
    return weight;
  }

  // A weight with its bias, which only some families have.
  FrozenLinear Linear(const std::string& path, const LinearShape& shape, bool bias) {
    FrozenLinear linear{path, Weight(path, shape), {}};
    if (bias) linear.bias = Wide(path + ".bias", shape.out, 0);
    return linear;
  }

  // All tensors of one layer, in the order in which passes read them. post_attention_layernorm is
  // the norm before the MLP, except in Gemma, where it is the norm of the attention output.
  LayerWeights Layer(std::int64_t l) {
    const std::string layer = fmt::format("{}layers.{}.", prefix_, l);
    const PerLinear<std::string> names = LinearNames(config_);
    const PerLinear<LinearShape> shapes = ShapeLinears(config_);
    LayerWeights out;
    out.input_norm = Norm(layer + "input_layernorm.weight", config_.hidden_size);
    for (std::size_t i = 0; i < names.qkv.size(); ++i) {
      out.linears.qkv.push_back(Linear(layer + names.qkv[i], shapes.qkv[i], config_.qkv_bias));
    }
    if (config_.qk_norm) {
      out.q_norm = Norm(layer + "self_attn.q_norm.weight", config_.head_dim);
      out.k_norm = Norm(layer + "self_attn.k_norm.weight", config_.head_dim);
    }
    out.linears.o = Linear(layer + names.o, shapes.o, config_.o_bias);
    const std::string post_attention = layer + "post_attention_layernorm.weight";
    if (config_.post_norms) {
      out.post_attn_norm = Norm(post_attention, config_.hidden_size);
      out.mlp_norm = Norm(layer + "pre_feedforward_layernorm.weight", config_.hidden_size);
      out.post_mlp_norm = Norm(layer + "post_feedforward_layernorm.weight", config_.hidden_size);
    } else {
      out.mlp_norm = Norm(post_attention, config_.hidden_size);
    }
    for (std::size_t i = 0; i < names.gate_up.size(); ++i) {
      out.linears.gate_up.push_back(
          Linear(layer + names.gate_up[i], shapes.gate_up[i], config_.mlp_bias));
    }
    for (std::size_t i = 0; i < names.down.size(); ++i) {
      out.linears.down.push_back(Linear(layer + names.down[i], shapes.down[i], config_.mlp_bias));
    }
    if (config_.moe.num_experts > 0) {
      out.router =
          Table(layer + RouterName(config_) + ".weight", config_.moe.num_experts, options_.use);
    }
    return out;
  }

  Context& context_;
  Backend& backend_;
  const DecoderConfig& config_;
  const LoadOptions& options_;
  TensorReader& reader_;
  std::string prefix_;
  std::set<std::string> used_;  // tensors that were asked for
  Carver* carver_ = nullptr;
  bool is_4bit_ = false;  // the checkpoint
  bool read_ = false;
  bool imagines_ = false;
  TensorInfo imagined_;  // the last requested tensor
  std::int64_t parameters_ = 0;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;  // the count of the run before
  std::size_t mapped_ = 0;
  std::size_t embedding_ = 0;
  std::optional<QuantizationFields> stored_4bit_;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace

WeightSizes PlanWeights(Context& context, Backend& backend, const std::filesystem::path& model_dir,
                        const DecoderConfig& config, const LoadOptions& options) {
  DecoderWeights weights;
  const std::unique_ptr<TensorReader> reader = OpenCheckpoint(model_dir, config);
  Loader loader(context, backend, config, options, *reader);
  Carver plan;
  loader.Run(plan, false, weights);
  return loader.Sizes();
}

WeightSizes PlanWeights(Context& context, Backend& backend, const DecoderConfig& config,
                        const LoadOptions& options) {
  DecoderWeights weights;
  NoFiles files;
  Loader loader(context, backend, config, options, files);
  // Every tensor is assumed to exist in bfloat16, the type of almost all checkpoints.
  loader.Imagine();
  Carver plan;
  loader.Run(plan, false, weights);
  return loader.Sizes();
}

DecoderWeights LoadWeights(Context& context, Backend& backend,
                           const std::filesystem::path& model_dir, const DecoderConfig& config,
                           const LoadOptions& options) {
  DecoderWeights weights;
  weights.reader = OpenCheckpoint(model_dir, config);
  Loader loader(context, backend, config, options, *weights.reader);
  Carver plan;
  loader.Run(plan, false, weights);
  weights.arena = Arena(plan.bytes(), backend.memory());
  Carver carver(weights.arena);
  // The owners of the first run: the second run makes its own.
  loader.TakeOwners();
  loader.Run(carver, true, weights);
  QLORA_DCHECK(carver.bytes() == plan.bytes());
  weights.owners = loader.TakeOwners();
  weights.sizes = loader.Sizes();
  return weights;
}

}  // namespace qlora
