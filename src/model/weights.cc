#include "model/weights.h"

#include <algorithm>
#include <cmath>

#include "backend/int8/codes.h"
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
    for (const DecoderTensor& row : DecoderTensors(config_)) {
      row.vector != nullptr ? ReadVector(row, out) : ReadTable(row, out);
    }
    out.layers.resize(config_.num_hidden_layers);
    for (std::int64_t l = here.begin; l < here.end; ++l) out.layers[l] = Layer(l);
    out.sizes = {
        carver.bytes(),
        place_->mapped(),
        stored_4bit_,
        tensors_.parameters(),
        {block_formats_.begin(), block_formats_.end()},
        // A stage leaves the tensors of others alone.
        here.size() == config_.num_hidden_layers ? tensors_.Notes() : std::vector<std::string>{},
        QuantizedSharesOf(out)};
  }

 private:
  void ReadTable(const DecoderTensor& row, DecoderWeights& out) {
    const auto tensor = [&]() -> const TensorInfo& {
      return tensors_.Get(tensors_.prefix() + row.name, {row.shape.out, row.shape.in});
    };
    // A tied head is the embedding itself, in the file and in memory.
    const bool tied = config_.tie_word_embeddings;
    if (row.is_head()) {
      if (config_.has_head()) out.head = tied ? out.embed : Head();
    } else if (row.table == &DecoderWeights::per_layer_embed) {
      out.per_layer_embed = RowsInFile(tensor(), row.shape.out, row.shape.in);
    } else if (config_.has_embedding() || (tied && config_.has_head())) {
      out.embed = Table(tensor(), row.shape.out, tied ? options_.use : WeightUse::kTraining);
    }
  }

  void ReadVector(const DecoderTensor& row, DecoderWeights& out) {
    const bool is_norm = row.kind == TensorKind::kNorm;
    if (is_norm && !config_.has_head()) return;
    const std::int64_t size = row.shape.in;
    const TensorInfo& tensor = tensors_.Get(tensors_.prefix() + row.name, {size});
    const auto read = [&](double scale) {
      return Wide(tensor, 1, size, is_norm ? NormShift() : 0, scale);
    };
    out.*row.vector = read(1);
    out.*row.scaled = row.scale == 1 ? out.*row.vector : read(row.scale);
  }

  // Gemma stores w - 1; 1 is added here, so that the ops know one form of norm.
  double NormShift() const { return config_.one_plus_norm ? 1 : 0; }

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

  // (C, 1, K), of mlx-lm (C, K, 1).
  std::vector<std::int64_t> ConvShape(const std::string& name, std::int64_t rows,
                                      std::int64_t cols) const {
    const TensorInfo* tensor = reader_.Find(name);
    const std::vector<std::int64_t> of_mlx = {rows, cols, 1};
    if (tensor != nullptr && tensor->shape == of_mlx) return of_mlx;
    return {rows, 1, cols};
  }

  // A tensor of a layer other than a linear and the router.
  ConstMatrixView ReadValues(const LayerTensor& row, const std::string& name) {
    const auto [rows, cols] = row.shape;
    switch (row.kind) {
      case TensorKind::kNorm:
        return Wide(name, cols, NormShift());
      case TensorKind::kRate:
        return Rate(name, cols);
      case TensorKind::kScalar:
        return Scalar(name);
      case TensorKind::kConv:
        return Wide(tensors_.Get(name, ConvShape(name, rows, cols)), rows, cols, 0, 1);
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

QuantizedShares QuantizedSharesOf(const DecoderWeights& weights) {
  QuantizedShares shares;
  for (std::int64_t g = 0; g < std::ssize(kLinearGroups); ++g) {
    double all = 0;
    double quantized = 0;
    for (const LayerWeights& layer : weights.layers) {
      for (const FrozenLinear& linear : GroupOf(layer.linears, kLinearGroups[g])) {
        const auto parameters = static_cast<double>(linear.weight.rows() * linear.weight.cols());
        all += parameters;
        if (int8::HasCodes(linear.weight)) quantized += parameters;
      }
    }
    if (all > 0) shares.linears[g] = quantized / all;
  }
  if (!weights.head.empty() && int8::HasCodes(weights.head)) shares.head = 1;
  return shares;
}

WeightSizes PlanWeights(Context& context, Backend& backend, const std::filesystem::path& model_dir,
                        const DecoderConfig& config, const LoadOptions& options) {
  const std::unique_ptr<TensorReader> reader = OpenCheckpoint(model_dir, config);
  CheckpointTensors tensors(*reader, config);
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
  weights.reader = WithReplaced(OpenCheckpoint(model_dir, config), options.replaced, config);
  CheckpointTensors tensors(*weights.reader, config);
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
