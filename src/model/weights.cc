#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/matrix.h"
#include "model/checkpoint.h"
#include "model/checkpoint_tensors.h"
#include "model/tensor_list.h"
#include "model/weight_reader.h"

namespace qlora {
namespace {

// All weights of a decoder.
class Loader : public WeightReader {
 public:
  using WeightReader::WeightReader;

  // Everything but the owners.
  void Run(Carver& carver, bool read, DecoderWeights& out) {
    Begin(carver, read);
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
    out.embed = Table(tensor, config_.vocab_size, tied ? options_.use : WeightUse::kTraining);
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

  // Gemma stores w - 1; 1 is added here, so that the ops know one form of norm.
  ConstMatrixView Norm(const std::string& name, std::int64_t size, double factor = 1) {
    return Wide(name, size, config_.one_plus_norm ? 1 : 0, factor);
  }

  // -exp(A_log), which a GGUF file holds in the place of A_log.
  ConstMatrixView Rate(const std::string& name, std::int64_t heads) {
    if (const std::string rate = RateName(name); reader_.Find(rate) != nullptr) {
      return Wide(rate, heads);
    }
    const TensorInfo& tensor = tensors_.Get(name, {heads});
    std::vector<float> values = Values(tensor);
    for (std::size_t h = 0; h < values.size(); ++h) {
      values[h] = static_cast<float>(-std::exp(double{values[h]}));
      if (!std::isfinite(values[h])) ThrowNotFinite(tensor, static_cast<std::int64_t>(h));
    }
    return Vector(heads, values);
  }

  // A number for all channels.
  ConstMatrixView Scalar(const std::string& name) {
    const std::vector<float> value = Values(tensors_.Get(name, {1}));
    return Constant(config_.hidden_size, value.empty() ? 1 : value.front());
  }

  // A tensor of a layer other than a linear and the router.
  ConstMatrixView ReadValues(const LayerTensor& row, const std::string& name) {
    const auto [rows, cols] = row.shape;
    switch (row.kind) {
      case TensorKind::kNorm:
        return Norm(name, cols);
      case TensorKind::kRate:
        return Rate(name, cols);
      case TensorKind::kScalar:
        return Scalar(name);
      case TensorKind::kConv:
        return Wide(tensors_.Get(name, {rows, 1, cols}), rows, cols, 0, 1);
      default:
        return Wide(tensors_.Get(name, {rows * cols}), rows, cols, 0, row.load_factor);
    }
  }

  FrozenLinear ReadLinear(const LayerTensor& row, std::int64_t l, std::int64_t expert) {
    const std::string path = row.ModuleIn(tensors_.prefix(), l, expert);
    // In the type of the file: a rounded logit may choose another expert.
    if (row.group == LinearGroup::kSideRouter) {
      return {path, Table(path + ".weight", row.shape.out, options_.use), {}};
    }
    return Linear(path, row.shape, row.has_bias);
  }

  LayerWeights Layer(std::int64_t l) {
    LayerWeights out;
    const std::vector<LayerTensor> rows = LayerTensors(config_, l);
    for (const LayerTensor& row : rows) {
      if (row.kind == TensorKind::kLinear) continue;
      const std::string name = row.TensorIn(tensors_.prefix(), l);
      if (row.kind == TensorKind::kTable) {
        out.router = Table(name, row.shape.out, options_.use);
      } else {
        row.member.fill(out) = ReadValues(row, name);
      }
    }
    const LayerConfig sizes = config_.layer(l);
    if (config_.value_norm && sizes.has_own_kv()) out.v_norm = Constant(sizes.head_dim, 1);
    ForEachLinear(rows, [&](const LayerTensor& row, std::int64_t expert) {
      if (row.is_stacked && expert > 0) return;  // they come with the first
      if (!row.is_stacked) return Append(out.linears, row.group, ReadLinear(row, l, expert));
      std::vector<std::string> paths;
      for (std::int64_t e = 0; e < row.experts; ++e) {
        paths.push_back(row.ModuleIn(tensors_.prefix(), l, e));
      }
      for (FrozenLinear& linear : Stack(row.TensorIn(tensors_.prefix(), l), paths, row.shape)) {
        Append(out.linears, row.group, std::move(linear));
      }
    });
    return out;
  }
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
