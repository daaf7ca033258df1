#include "export/export_gguf.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/matrix.h"
#include "base/text.h"
#include "config/gguf_names.h"
#include "convert/merged_linear.h"
#include "export/gguf_decision_keys.h"
#include "export/gguf_limits.h"
#include "export/gguf_metadata.h"
#include "export/gguf_origin.h"
#include "export/gguf_plan.h"
#include "export/gguf_tokenizer_keys.h"
#include "model/base_record.h"
#include "model/tensor_list.h"
#include "qlora/export_gguf.h"

namespace qlora {
namespace {

// Puts the columns of `count` rows into another order: column order[i] becomes column i.
void MoveColumns(const std::vector<std::int64_t>& order, std::int64_t count, float* rows) {
  std::vector<float> row(order.size());
  for (std::int64_t r = 0; r < count; ++r, rows += order.size()) {
    for (std::size_t i = 0; i < order.size(); ++i) row[i] = rows[order[i]];
    std::copy(row.begin(), row.end(), rows);
  }
}

class ModelPlan {
 public:
  ModelPlan(Context& context, Memory& memory, const GgufModelSource& model)
      : context_(context),
        memory_(memory),
        config_(model.config),
        weights_(model.weights),
        adapter_(model.adapter),
        file_(model.file),
        importance_(model.importance),
        mix_{.architecture = GgufArchitectureOf(config_),
             .layers = config_.num_hidden_layers,
             .heads = config_.num_attention_heads,
             .kv_heads = HasHeadsOfKeys(0) ? config_.layer(0).num_key_value_heads : 0,
             .experts = config_.experts().num_experts,
             .value_layers = ValueLayers(),
             .tied = weights_.is_tied(),
             .has_importance = importance_ != nullptr} {}

  const GgufPlan& Build() {
    for (const DecoderTensor& row : DecoderTensors(config_)) {
      const std::string& name = row.gguf[0][0].tensor;
      if (row.vector != nullptr) {
        plan_.Vector(name, FloatsOf(weights_.*row.vector));
      } else if (!row.is_head() || !weights_.is_tied()) {
        const WeightView& table = weights_.*row.table;
        const bool in_host = row.table == &DecoderWeights::per_layer_embed;
        Weigh(Table(name, table, TypeOf(name, table.cols()), in_host ? HostMemory() : memory_),
              row.is_head());
      }
    }
    for (const RopeFactors& factors : GgufRopeFactors(config_)) {
      plan_.Vector(factors.name, factors.values);
    }
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) Layer(l);
    return plan_;
  }

 private:
  // llama.cpp counts the heads of keys in all layers but those of short convolutions.
  bool HasHeadsOfKeys(std::int64_t l) const { return config_.layers[l].mixer != Mixer::kShortConv; }

  std::vector<std::int64_t> ValueLayers() const {
    std::vector<std::int64_t> layers;
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      const LayerConfig& layer = config_.layers[l];
      if (HasHeadsOfKeys(l) && layer.has_own_kv() && !layer.k_is_v) layers.push_back(l);
    }
    return layers;
  }

  TensorType TypeOf(const std::string& name, std::int64_t cols) const {
    return GgufTensorType(file_, mix_, name, cols);
  }

  // Gives the tensor that was added last its importance. multiplies: false for a table, of which
  // rows are looked up.
  void Weigh(GgufTensor& tensor, bool multiplies) const {
    if (importance_ == nullptr || !tensor.info.dtype.is_blocks()) return;
    const std::string& name = tensor.info.name;
    const auto found = importance_->entries.find(name);
    if (found == importance_->entries.end()) {
      if (!file_.needs_importance || !multiplies || tensor.info.dtype != file_.base) return;
      ThrowInvalidInput(
          "the importance matrix has no '{}', which {} needs: make one of this model, or choose "
          "another outtype",
          name, file_.name);
    }
    const std::int64_t cols = tensor.info.shape.back();
    const std::int64_t matrices = tensor.info.shape.size() > 2 ? tensor.info.shape[0] : 1;
    const std::vector<float>& weights = found->second.mean_squares;
    if (std::ssize(weights) == matrices * cols) {
      tensor.importance = weights;
    } else if (multiplies) {
      ThrowInvalidInput(
          "the importance matrix has {} values for '{}', where the model has {} matrices of {} "
          "columns; it is of another model",
          weights.size(), name, matrices, cols);
    }
  }

  GgufTensor& Table(const std::string& name, const WeightView& table, TensorType type,
                    Memory& memory) {
    return plan_.Matrix(name, type, table.rows(), table.cols(),
                        [&memory, table](std::int64_t first, std::int64_t count, float* out) {
                          const HostWeight rows(memory, table, first, count);
                          for (std::int64_t r = 0; r < count; ++r)
                            rows.Read(r, out + r * table.cols());
                        });
  }

  std::vector<float> FloatsOf(const ConstMatrixView& m) const {
    if (m.empty()) return {};
    const std::vector<double> values = DownloadReal(memory_, m);
    return {values.begin(), values.end()};
  }

  // Returns the linear that is being written. Only this linear may have a copy in host memory.
  const MergedLinear& Merged(const FrozenLinear* frozen, const LoraLinear* lora) {
    // Rows of one linear come in several pieces, one after the other.
    if (current_ != frozen) {
      merged_.reset();
      merged_.emplace(memory_, frozen->weight, lora);
      current_ = frozen;
    }
    return *merged_;
  }

  // Adds the linears that share one tensor.
  void Linears(const LayerTensor& row, std::int64_t l, const std::string& weight) {
    const LinearRows rows = GgufRowsOf(config_, l, row, weight);
    const std::vector<const FrozenLinear*> stack = StackOf(weights_.layers[l].linears, row);
    std::vector<const LoraLinear*> loras;
    if (adapter_ != nullptr) loras = StackOf(adapter_->layers()[l], row);
    std::vector<std::int64_t> order = rows.order;
    const float factor = rows.factor;
    const FrozenLinear& first_linear = *stack[0];
    if (order.empty()) {
      // order[i] is the row of the checkpoint that becomes row i of the file.
      order.resize(first_linear.weight.rows());
      std::iota(order.begin(), order.end(), std::int64_t{0});
    }
    if (!first_linear.bias.empty()) Biases(StemOf(weight) + ".bias", stack, order, factor);
    const std::int64_t out_rows = std::ssize(order);
    const std::int64_t cols = first_linear.weight.cols();
    std::vector<GgufRows> merged;
    std::vector<GgufRows> unchanged;
    bool changes = false;
    for (std::size_t e = 0; e < stack.size(); ++e) {
      const LoraLinear* lora = loras.empty() ? nullptr : loras[e];
      changes |= lora != nullptr && lora->rank > 0;
      const auto read = [this, frozen = stack[e], lora, order, columns = rows.columns,
                         factor](auto method) {
        return [=, this](std::int64_t first, std::int64_t count, float* out) {
          const MergedLinear& linear = Merged(frozen, lora);
          (linear.*method)(context_, std::span(order).subspan(first, count), out);
          if (!columns.empty()) MoveColumns(columns, count, out);
          if (factor == 1) return;
          std::transform(out, out + count * linear.cols(), out,
                         [factor](float value) { return value * factor; });
        };
      };
      merged.push_back(read(&MergedLinear::Read));
      unchanged.push_back(read(&MergedLinear::ReadWithoutAdapter));
    }
    // llama.cpp keeps the gate of a shared expert as a vector, in float32. A rounded router may
    // choose another expert.
    const bool is_vector = row.group == LinearGroup::kSharedIn && out_rows == 1;
    const bool is_router = row.group == LinearGroup::kSideRouter;
    const TensorType type = is_vector || is_router ? TensorType(DType::kF32) : TypeOf(weight, cols);
    GgufTensor& tensor = plan_.Stack(weight, type, out_rows, cols, std::move(merged));
    if (is_vector) tensor.info.shape = {cols};
    if (changes) tensor.unchanged = StackedRows(out_rows, cols, std::move(unchanged));
    Weigh(tensor, true);
  }

  // A vector, or the rows of all experts.
  void Biases(const std::string& name, const std::vector<const FrozenLinear*>& stack,
              const std::vector<std::int64_t>& order, float factor) {
    std::vector<float> values;
    for (const FrozenLinear* linear : stack) {
      const std::vector<float> source = FloatsOf(linear->bias);
      // An output has its row of W and its value of the bias: both change places together.
      for (const std::int64_t row : order) values.push_back(factor * source[row]);
    }
    if (stack.size() == 1) return plan_.Vector(name, std::move(values));
    const std::int64_t cols = std::ssize(order);
    plan_.Matrix(
        name, DType::kF32, std::ssize(stack), cols,
        [values = std::move(values), cols](std::int64_t first, std::int64_t count, float* out) {
          std::copy_n(values.begin() + first * cols, count * cols, out);
        });
  }

  // Values of the wide type, in float32.
  void Values(const LayerTensor& row, std::int64_t l) {
    const std::string& name = row.gguf[0][0].tensor;
    const ConstMatrixView& member = row.member.read(weights_.layers[l]);
    std::vector<float> values =
        FloatsOf(row.kind == TensorKind::kScalar ? Columns(member, 0, 1) : member);
    const LinearRows rows = GgufRowsOf(config_, l, row, name);
    if (rows.factor != 1) {
      for (float& value : values) value *= rows.factor;
    }
    if (row.kind != TensorKind::kConv) {
      if (!rows.order.empty()) MoveColumns(rows.order, 1, values.data());
      return plan_.Vector(name, std::move(values));
    }
    const std::int64_t taps = row.shape.in;
    const auto read = [values = std::move(values), order = rows.order, taps](
                          std::int64_t first, std::int64_t count, float* out) {
      for (std::int64_t c = first; c < first + count; ++c) {
        const std::int64_t source = order.empty() ? c : order[c];
        std::copy_n(values.begin() + source * taps, taps, out + (c - first) * taps);
      }
    };
    plan_.Matrix(name, DType::kF32, row.shape.out, taps, read);
  }

  void Layer(std::int64_t l) {
    for (const LayerTensor& row : LayerTensors(config_, l)) {
      for (const std::string& tensor : GgufTensorsOf(row)) {
        if (row.kind == TensorKind::kLinear) {
          Linears(row, l, tensor);
        } else if (row.kind == TensorKind::kTable) {
          // float32: a rounded logit may choose another expert.
          Table(tensor, weights_.layers[l].router, DType::kF32, memory_);
        } else {
          Values(row, l);
        }
      }
    }
  }

  Context& context_;
  Memory& memory_;
  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  const LoraAdapter* adapter_;
  const GgufFileType& file_;
  const ImportanceMatrix* importance_;
  GgufMixModel mix_;
  const FrozenLinear* current_ = nullptr;
  std::optional<MergedLinear> merged_;
  GgufPlan plan_;
};

// The numbers of the experts of all layers (kGgufExpertScales); empty without.
std::vector<float> ExpertScales(Memory& memory, const DecoderWeights& weights) {
  std::vector<float> scales;
  for (const LayerWeights& layer : weights.layers) {
    if (layer.side.expert_scale.empty()) continue;
    const std::vector<double> values = DownloadReal(memory, layer.side.expert_scale);
    scales.insert(scales.end(), values.begin(), values.end());
  }
  return scales;
}

// The alpha of a file, for which alpha / r is the scale of most modules. llama.cpp takes the scale
// 1 for an alpha of 0.
float AlphaToWrite(const AdapterConfig& config) {
  const double root = config.use_rslora ? std::sqrt(static_cast<double>(config.r)) : 1;
  const auto alpha = static_cast<float>(config.lora_alpha * root);
  return alpha == 0 ? 1 : alpha;
}

}  // namespace

const GgufFileType& ParseOuttype(const std::string& name) {
  if (const GgufFileType* file = FindGgufFileType(name)) return *file;
  std::vector<std::string> names;
  for (const GgufFileType& file : GgufFileTypes()) names.push_back(LowerCase(file.name));
  ThrowInvalidInput("outtype expects one of {}, found '{}'", fmt::join(names, ", "), name);
}

void ExportGgufModel(Context& context, Memory& memory, const GgufModelSource& model,
                     const ExportTarget& target, const ProgressFn& progress,
                     std::vector<std::string>& notes) {
  CheckGgufLimits(model.config, model.weights.is_tied());
  GgufMetadata metadata;
  const std::string own_name = NameForTokenizer(model.name, model.tokenizer, notes);
  AddModelMetadata(model.config, own_name, model.file.number, metadata);
  AddOrigin(model.folder, model.adapter == nullptr, metadata);
  if (model.adapter != nullptr) AddBaseModel(model.name, model.repository, metadata);
  if (model.adapter != nullptr || model.merged_before) metadata.Add(kMergedWeightsKey, true);
  AddQuantizer(model.file, model.importance, model.importance_file, metadata);
  const std::string architecture = GgufArchitectureOf(model.config);
  const bool prefix_space = WritesPrefixSpace(model.tokenizer, model.decision);
  AddTokenizerMetadata(model.tokenizer, architecture, model.config.vocab_size, prefix_space,
                       metadata, notes);
  if (model.decision != nullptr) AddDecisionMetadata(*model.decision, architecture, metadata);
  ModelPlan plan(context, memory, model);
  plan.Build().Write(context, target.path, target.mode, metadata, progress, model.check);
}

void ExportGgufAdapter(Context& context, const DecoderConfig& config, const DecoderWeights& weights,
                       const LoraAdapter& adapter, const GgufAdapterBase& base,
                       const ExportTarget& target) {
  CheckGgufLimits(config, config.tie_word_embeddings);
  Memory& memory = adapter.memory();
  const float alpha = AlphaToWrite(adapter.config());
  GgufMetadata metadata;
  metadata.Add("general.architecture", GgufArchitectureOf(config));
  metadata.Add("general.type", std::string("adapter"));
  metadata.Add("general.name", base.name);
  AddBaseModel(base.name, base.repository, metadata);
  if (!base.fingerprint.empty()) metadata.Add(kBaseFingerprintKey, base.fingerprint);
  metadata.Add("adapter.type", std::string("lora"));
  metadata.Add("adapter.lora.alpha", alpha);
  const std::vector<float> expert_scales = ExpertScales(memory, weights);
  const bool scales = std::ranges::any_of(adapter.layers(), [](const PerLinear<LoraLinear>& layer) {
    return !layer.side_out.empty() && layer.side_out.front().rank > 0;
  });
  if (scales) metadata.Add(kGgufExpertScales, expert_scales);
  GgufPlan plan;
  // factors: of B of each linear of the stack, or empty.
  const auto add = [&](const std::string& tensor, const std::vector<const LoraLinear*>& stack,
                       const LinearRows& linear_rows, std::span<const float> factors) {
    const LoraLinear& lora = *stack[0];
    std::vector<GgufRows> as;
    std::vector<GgufRows> bs;
    for (const LoraLinear* expert : stack) {
      // One tensor (E, R, in) has one R.
      if (expert->rank != lora.rank) {
        ThrowInvalidInput(
            "the adapters of '{}' have rank {} and of '{}' rank {}; an adapter GGUF needs one rank "
            "for all experts: merge the adapter instead (--format gguf)",
            lora.path, lora.rank, expert->path, expert->rank);
      }
      as.push_back([&memory, a = expert->a, columns = linear_rows.columns](
                       std::int64_t first, std::int64_t count, float* out) {
        // Columns of A are inputs, like columns of W.
        memory.Download(a.Row<float>(first), out, BytesOf(DType::kF32, count * a.cols));
        if (!columns.empty()) MoveColumns(columns, count, out);
      });
      // llama.cpp computes alpha / rank * B A; B takes up the difference from the trained scale.
      const auto rank = static_cast<float>(expert->rank);
      const double rest =
          alpha / rank == expert->scale ? 1 : double{expert->scale} * double{rank} / double{alpha};
      const double scale = factors.empty() ? 1 : double{factors[bs.size()]};
      const double factor = double{linear_rows.factor} * rest * scale;
      bs.push_back([&memory, b = expert->b, order = linear_rows.order, factor](
                       std::int64_t first, std::int64_t count, float* out) {
        const std::vector<float> values = Download<float>(memory, b);
        for (std::int64_t r = 0; r < count; ++r) {
          // Rows of B are outputs, like rows of W.
          const std::int64_t source = order.empty() ? first + r : order[first + r];
          const float* row = values.data() + source * b.cols;
          std::transform(row, row + b.cols, out + r * b.cols, [factor](float value) {
            return static_cast<float>(factor * double{value});
          });
        }
      });
    }
    // The adapter does not name this linear.
    if (lora.rank == 0) return;
    plan.Stack(tensor + ".lora_a", target.outtype, lora.rank, lora.in, std::move(as));
    const std::int64_t out = linear_rows.order.empty() ? lora.out : std::ssize(linear_rows.order);
    plan.Stack(tensor + ".lora_b", target.outtype, out, lora.rank, std::move(bs));
  };
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const PerLinear<LoraLinear>& loras = adapter.layers()[l];
    for (const LoraLinear& lora : loras.per_layer_model) {
      if (lora.rank == 0) continue;
      ThrowInvalidInput(
          "the adapter of '{}' cannot be used from an adapter GGUF: llama.cpp ignores it; merge it "
          "into the model (--format gguf)",
          lora.path);
    }
    ForEachGgufLinear(config, l, [&](const LayerTensor& row, const std::string& tensor) {
      const std::vector<const LoraLinear*> stack = StackOf(loras, row);
      std::span<const float> factors;
      if (row.group == LinearGroup::kSideOut) {
        factors = std::span(expert_scales).subspan(l * stack.size(), stack.size());
      }
      add(tensor, stack, GgufRowsOf(config, l, row, tensor), factors);
    });
  }
  plan.Write(context, target.path, target.mode, metadata, {});
}

void ExportGguf(std::span<const NamedMatrix> tensors, const std::filesystem::path& path,
                const std::string& outtype) {
  const TensorType type = ParseOuttype(outtype).base;
  GgufPlan plan;
  for (const NamedMatrix& tensor : tensors) {
    const compat::Matrix& matrix = tensor.matrix;
    plan.Matrix(tensor.name, type, matrix.rows(), matrix.cols(),
                [&matrix](std::int64_t first, std::int64_t count, float* out) {
                  compat::DequantizeRows(matrix.view(), first, MakeView(out, count, matrix.cols()));
                });
  }
  Context context;
  plan.Write(context, path, OpenMode::kReplace, {}, {});
}

}  // namespace qlora
