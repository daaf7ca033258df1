#include "convert/export_gguf.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/matrix.h"
#include "base/text.h"
#include "convert/gguf_limits.h"
#include "convert/gguf_metadata.h"
#include "convert/gguf_origin.h"
#include "convert/gguf_plan.h"
#include "convert/gguf_tokenizer_keys.h"
#include "convert/merged_linear.h"
#include "model/base_record.h"
#include "model/gguf_names.h"
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
    Weigh(Table("token_embd.weight", weights_.embed,
                TypeOf("token_embd.weight", weights_.embed.cols())));
    Vector(fmt::format("{}.weight", FindGgufArchitecture(config_.model_type)->final_norm),
           weights_.final_norm);
    // Without output.weight llama.cpp uses token_embd as the head.
    if (!weights_.is_tied()) {
      Weigh(Table("output.weight", weights_.head, TypeOf("output.weight", weights_.head.cols())));
    }
    if (config_.per_layer_size > 0) {
      const WeightView& table = weights_.per_layer_embed;
      const char* const name = "per_layer_token_embd.weight";
      Weigh(Table(name, table, TypeOf(name, table.cols()), HostMemory()));
      Vector("per_layer_proj_norm.weight", weights_.per_layer_norm);
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

  // Gives the tensor that was added last its importance.
  void Weigh(GgufTensor& tensor) const {
    if (importance_ == nullptr || !tensor.info.dtype.is_blocks()) return;
    const std::string& name = tensor.info.name;
    const bool is_embedding = name == "token_embd.weight" || name == "per_layer_token_embd.weight";
    const auto found = importance_->entries.find(name);
    if (found == importance_->entries.end()) {
      // Tables have none, since a lookup multiplies nothing.
      if (!file_.needs_importance || is_embedding || tensor.info.dtype != file_.base) return;
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
    } else if (!is_embedding) {
      ThrowInvalidInput(
          "the importance matrix has {} values for '{}', where the model has {} matrices of {} "
          "columns; it is of another model",
          weights.size(), name, matrices, cols);
    }
  }

  GgufTensor& Table(const std::string& name, const WeightView& table, TensorType type) {
    return Table(name, table, type, memory_);
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

  // Writes a vector of the wide type as it is.
  void Vector(const std::string& name, const ConstMatrixView& values) {
    plan_.Vector(name, FloatsOf(values));
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

  // Adds the linears that share one tensor; loras may be empty.
  void Linears(const std::string& name, const std::vector<const FrozenLinear*>& stack,
               const std::vector<const LoraLinear*>& loras, const LinearRows& rows) {
    std::vector<std::int64_t> order = rows.order;
    const float factor = rows.factor;
    const FrozenLinear& first_linear = *stack[0];
    if (order.empty()) {
      // order[i] is the row of the checkpoint that becomes row i of the file.
      order.resize(first_linear.weight.rows());
      std::iota(order.begin(), order.end(), std::int64_t{0});
    }
    if (!first_linear.bias.empty()) Biases(name + ".bias", stack, order, factor);
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
    const std::string weight = name + ".weight";
    // llama.cpp keeps the gate of a shared expert as a vector, in float32. A rounded router may
    // choose another expert.
    const bool is_vector = weight.ends_with("ffn_gate_inp_shexp.weight");
    const bool is_router = weight.ends_with("ffn_gate_inp.weight");
    const TensorType type = is_vector || is_router ? TensorType(DType::kF32) : TypeOf(weight, cols);
    GgufTensor& tensor = plan_.Stack(weight, type, out_rows, cols, std::move(merged));
    if (is_vector) tensor.info.shape = {cols};
    if (changes) tensor.unchanged = StackedRows(out_rows, cols, std::move(unchanged));
    Weigh(tensor);
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

  // The weights of a convolution (C, K), in float32; order: of the channels, or empty.
  void Conv(const std::string& name, const ConvWeights& conv,
            const std::vector<std::int64_t>& order) {
    const std::int64_t taps = conv.weight.cols;
    const auto read = [values = FloatsOf(conv.weight), order, taps](
                          std::int64_t first, std::int64_t count, float* out) {
      for (std::int64_t c = first; c < first + count; ++c) {
        const std::int64_t source = order.empty() ? c : order[c];
        std::copy_n(values.begin() + source * taps, taps, out + (c - first) * taps);
      }
    };
    plan_.Matrix(name, DType::kF32, conv.weight.rows, taps, read);
  }

  void DeltaRule(const std::string& block, const LayerWeights& w) {
    const std::vector<std::int64_t> heads =
        config_.delta_rule.tiled ? std::vector<std::int64_t>{} : GgufValueHeads(config_);
    const std::int64_t values = config_.delta_value_features();
    Conv(block + "ssm_conv1d.weight", w.conv,
         RowsOfHeads(heads, config_.delta_rule.value_dim, config_.delta_conv_features() - values));
    const auto vector = [&](const char* name, const ConstMatrixView& source) {
      std::vector<float> all = FloatsOf(source);
      if (!heads.empty()) MoveColumns(heads, 1, all.data());
      plan_.Vector(block + name, std::move(all));
    };
    vector("ssm_dt.bias", w.delta_rule.dt_bias);
    vector("ssm_a", w.delta_rule.rate);
    Vector(block + "ssm_norm.weight", w.delta_rule.norm);
  }

  void SideExperts(const std::string& block, const SideWeights& w) {
    std::vector<float> scale = FloatsOf(w.router_norm);
    const float root = std::sqrt(static_cast<float>(config_.hidden_size));
    for (float& value : scale) value *= root;
    plan_.Vector(block + "ffn_gate_inp.scale", std::move(scale));
    Vector(block + "ffn_down_exps.scale", Reshape(w.expert_scale, w.expert_scale.rows));
    Vector(block + "post_ffw_norm_1.weight", w.dense_norm);
    Vector(block + "pre_ffw_norm_2.weight", w.norm);
    Vector(block + "post_ffw_norm_2.weight", w.sum_norm);
  }

  void Layer(std::int64_t l) {
    const LayerWeights& w = weights_.layers[l];
    const PerLinear<std::string> names = GgufLinearNames(l, config_);
    const PerLinear<LinearRows> rows = GgufLinearRows(l, config_);
    const PerLinear<LoraLinear>* loras = adapter_ == nullptr ? nullptr : &adapter_->layers()[l];
    const std::string block = fmt::format("blk.{}.", l);

    Vector(block + "attn_norm.weight", w.input_norm);
    const auto add = [&](LinearGroup group) {
      const std::span<const std::string> tensors = GroupOf(names, group);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        std::vector<const LoraLinear*> stack;
        if (loras != nullptr) stack = StackOf(GroupOf(*loras, group), i, tensors.size());
        Linears(tensors[i], StackOf(GroupOf(w.linears, group), i, tensors.size()), stack,
                GroupOf(rows, group)[i]);
      }
    };
    add(LinearGroup::kQkv);
    if (config_.layers[l].mixer == Mixer::kDeltaRule) DeltaRule(block, w);
    if (config_.layers[l].mixer == Mixer::kShortConv) {
      Conv(block + "shortconv.conv.weight", w.conv, {});
    }
    std::vector<float> q_norm = FloatsOf(w.q_norm);
    const float factor = config_.qk_norm != QkNorm::kNone ? GgufScoreFactor(config_) : 1;
    for (float& value : q_norm) value *= factor;
    plan_.Vector(block + "attn_q_norm.weight", std::move(q_norm));
    Vector(block + "attn_k_norm.weight", w.k_norm);
    add(LinearGroup::kO);
    Vector(block + "post_attention_norm.weight", w.post_attn_norm);
    Vector(block + GgufMlpNorm(config_) + ".weight", w.mlp_norm);
    // float32: a rounded logit may choose another expert.
    if (!w.router.empty()) Table(block + "ffn_gate_inp.weight", w.router, DType::kF32);
    Vector(block + "exp_probs_b.bias", w.expert_bias);
    Vector(block + "ffn_gate_inp.bias", w.router_bias);
    Vector(block + "attn_sinks.weight", w.sinks);
    add(LinearGroup::kGateUp);
    add(LinearGroup::kDown);
    add(LinearGroup::kSharedIn);
    add(LinearGroup::kSharedOut);
    Vector(block + "post_ffw_norm.weight", w.post_mlp_norm);
    add(LinearGroup::kPerLayerGate);
    add(LinearGroup::kPerLayerOut);
    add(LinearGroup::kPerLayerModel);
    if (config_.side_moe.num_experts > 0) SideExperts(block, w.side);
    add(LinearGroup::kSideRouter);
    add(LinearGroup::kSideIn);
    add(LinearGroup::kSideOut);
    Vector(block + "post_norm.weight", w.per_layer_norm);
    if (!w.scale.empty()) {
      Vector(block + "layer_output_scale.weight", Columns(w.scale, 0, 1));
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
  CheckGgufLimits(model.config, GgufArchitectureOf(model.config), model.weights.is_tied());
  GgufMetadata metadata;
  const std::string own_name = NameForTokenizer(model.name, model.tokenizer, notes);
  AddModelMetadata(model.config, own_name, model.file.number, metadata);
  AddOrigin(model.folder, model.adapter == nullptr, metadata);
  if (model.adapter != nullptr) AddBaseModel(model.name, model.repository, metadata);
  if (model.adapter != nullptr || model.merged_before) metadata.Add(kMergedWeightsKey, true);
  AddQuantizer(model.file, model.importance, model.importance_file, metadata);
  AddTokenizerMetadata(model.tokenizer, GgufArchitectureOf(model.config), model.config.vocab_size,
                       metadata, notes);
  ModelPlan plan(context, memory, model);
  plan.Build().Write(context, target.path, target.mode, metadata, progress, model.check);
}

void ExportGgufAdapter(Context& context, const DecoderConfig& config, const DecoderWeights& weights,
                       const LoraAdapter& adapter, const GgufAdapterBase& base,
                       const ExportTarget& target) {
  CheckGgufLimits(config, GgufArchitectureOf(config), config.tie_word_embeddings);
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
    plan.Stack(tensor + ".weight.lora_a", target.outtype, lora.rank, lora.in, std::move(as));
    const std::int64_t out = linear_rows.order.empty() ? lora.out : std::ssize(linear_rows.order);
    plan.Stack(tensor + ".weight.lora_b", target.outtype, out, lora.rank, std::move(bs));
  };
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const PerLinear<std::string> names = GgufLinearNames(l, config);
    const PerLinear<LinearRows> rows = GgufLinearRows(l, config);
    const PerLinear<LoraLinear>& loras = adapter.layers()[l];
    for (const LoraLinear& lora : loras.per_layer_model) {
      if (lora.rank == 0) continue;
      ThrowInvalidInput(
          "the adapter of '{}' cannot be used from an adapter GGUF: llama.cpp ignores it; merge it "
          "into the model (--format gguf)",
          lora.path);
    }
    for (const LinearGroup group : kLinearGroups) {
      const std::span<const std::string> tensors = GroupOf(names, group);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::vector<const LoraLinear*> stack =
            StackOf(GroupOf(loras, group), i, tensors.size());
        std::span<const float> factors;
        if (group == LinearGroup::kSideOut) {
          factors = std::span(expert_scales).subspan(l * stack.size(), stack.size());
        }
        add(tensors[i], stack, GroupOf(rows, group)[i], factors);
      }
    }
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
