#include "export/gguf/export_gguf_adapter.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "config/gguf_names.h"
#include "export/gguf/gguf_limits.h"
#include "export/gguf/gguf_metadata.h"
#include "export/gguf/gguf_origin.h"
#include "export/gguf/gguf_plan.h"
#include "model/base_record.h"
#include "model/gguf_rows.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

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

// The table of weights that it changes.
WeightView DecoderWeights::*TableOf(const TableChange& change) {
  return change.name == "lm_head.weight" ? &DecoderWeights::head : &DecoderWeights::embed;
}

// The rows of a matrix in host memory, times a factor.
GgufRows RowsOf(std::vector<float> values, std::int64_t cols, double factor) {
  return [values = std::move(values), cols, factor](std::int64_t first, std::int64_t count,
                                                    float* out) {
    std::transform(values.begin() + first * cols, values.begin() + (first + count) * cols, out,
                   [factor](float value) { return static_cast<float>(factor * double{value}); });
  };
}

class AdapterPlan {
 public:
  AdapterPlan(const DecoderConfig& config, const LoraAdapter& adapter, float alpha,
              TensorType outtype)
      : config_(config),
        adapter_(adapter),
        memory_(adapter.memory()),
        alpha_(alpha),
        outtype_(outtype) {}

  // expert_scales: of all layers (ExpertScales).
  void AddLayers(std::span<const float> expert_scales) {
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      const PerLinear<LoraLinear>& loras = adapter_.layers()[l];
      ForEachGgufLinear(config_, l, [&](const LayerTensor& row, const std::string& tensor) {
        const std::vector<const LoraLinear*> stack = StackOf(loras, row);
        std::span<const float> factors;
        if (row.group == LinearGroup::kSideOut) {
          factors = expert_scales.subspan(l * stack.size(), stack.size());
        }
        AddLinear(tensor, stack, GgufRowsOf(config_, l, row, tensor), factors);
      });
    }
  }

  // TableChange has V rows in `left` for both tables.
  void AddTable(const DecoderTensor& row, const TableChange& change) {
    const auto [vocab, hidden] = row.shape;
    const std::string& tensor = row.gguf[0][0].tensor;
    const double rest = RestOf(change.scale, change.rank);
    if (row.is_head()) {
      Add(tensor + ".lora_a", change.rank, hidden, RowsOf(change.right, hidden, 1));
      Add(tensor + ".lora_b", vocab, change.rank, RowsOf(change.left, change.rank, rest));
    } else {
      Add(tensor + ".lora_a", vocab, change.rank, RowsOf(change.left, change.rank, 1));
      std::vector<float> b = Transposed(change.right, change.rank, hidden);
      Add(tensor + ".lora_b", hidden, change.rank, RowsOf(std::move(b), change.rank, rest));
    }
  }

  const GgufPlan& plan() const { return plan_; }

 private:
  void Add(const std::string& name, std::int64_t rows, std::int64_t cols, GgufRows produce) {
    plan_.Matrix(name, outtype_, rows, cols, std::move(produce));
  }

  // llama.cpp computes alpha / rank * B A; B takes up the difference from the trained scale.
  double RestOf(double scale, std::int64_t rank) const {
    const auto of_file = alpha_ / static_cast<float>(rank);
    if (of_file == static_cast<float>(scale)) return 1;
    return scale * static_cast<double>(rank) / double{alpha_};
  }

  // factors: of B of each linear of the stack, or empty.
  void AddLinear(const std::string& tensor, const std::vector<const LoraLinear*>& stack,
                 const LinearRows& rows, std::span<const float> factors) {
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
      if (expert->rank == 0) continue;
      as.push_back(RowsOfA(*expert, rows));
      const double scale = factors.empty() ? 1 : double{factors[bs.size()]};
      const double factor =
          double{rows.factor} * RestOf(double{expert->scale}, expert->rank) * scale;
      bs.push_back(RowsOfB(*expert, rows, factor));
    }
    // The adapter does not name this linear.
    if (as.empty()) return;
    plan_.Stack(tensor + ".lora_a", outtype_, lora.rank, lora.in, std::move(as));
    const std::int64_t out = rows.order.empty() ? lora.out : std::ssize(rows.order);
    plan_.Stack(tensor + ".lora_b", outtype_, out, lora.rank, std::move(bs));
  }

  // Columns of A are inputs, like columns of W.
  GgufRows RowsOfA(const LoraLinear& lora, const LinearRows& rows) const {
    return [&memory = memory_, a = lora.a, columns = rows.columns](std::int64_t first,
                                                                   std::int64_t count, float* out) {
      memory.Download(a.Row<float>(first), out, BytesOf(DType::kF32, count * a.cols));
      if (!columns.empty()) MoveColumns(columns, count, out);
    };
  }

  // Rows of B are outputs, like rows of W.
  GgufRows RowsOfB(const LoraLinear& lora, const LinearRows& rows, double factor) const {
    return [&memory = memory_, b = lora.b, order = rows.order, factor](
               std::int64_t first, std::int64_t count, float* out) {
      const std::vector<float> values = Download<float>(memory, b);
      for (std::int64_t r = 0; r < count; ++r) {
        const std::int64_t source = order.empty() ? first + r : order[first + r];
        const float* row = values.data() + source * b.cols;
        std::transform(row, row + b.cols, out + r * b.cols, [factor](float value) {
          return static_cast<float>(factor * double{value});
        });
      }
    };
  }

  const DecoderConfig& config_;
  const LoraAdapter& adapter_;
  Memory& memory_;
  float alpha_;
  TensorType outtype_;
  GgufPlan plan_;
};

}  // namespace

void CheckGgufAdapter(const DecoderConfig& config, const LoraAdapter& adapter,
                      const std::vector<TableChange>& tables, const std::string& where) {
  constexpr const char* kMerge = "merge it into the model: --format gguf";
  for (const TrainedModule& module : adapter.modules()) {
    const auto change = std::ranges::find(tables, module.name, &TableChange::name);
    const bool is_lora = change != tables.end() && change->rank > 0 && change->ids.empty() &&
                         change->from_base && module.rows == config.vocab_size;
    if (!is_lora) {
      ThrowInvalidInput("{} changes '{}' in whole rows, which a GGUF adapter cannot hold; {}",
                        where, module.name, kMerge);
    }
    if (config.tie_word_embeddings) {
      ThrowInvalidInput(
          "{} changes '{}', and the head of this model is its embedding: llama.cpp has one tensor "
          "for both, and no adapter of it; {}",
          where, module.name, kMerge);
    }
  }
  if (adapter.config().use_dora) {
    ThrowInvalidInput("{} is a DoRA adapter, which a GGUF adapter cannot hold; {}", where, kMerge);
  }
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    for (const LoraLinear& lora : layer.per_layer_model) {
      if (lora.rank == 0) continue;
      ThrowInvalidInput(
          "the adapter of '{}' cannot be used from an adapter GGUF: llama.cpp ignores it; merge it "
          "into the model (--format gguf)",
          lora.path);
    }
  }
}

void ExportGgufAdapter(Context& context, const DecoderConfig& config, const DecoderWeights& weights,
                       const LoraAdapter& adapter, const std::vector<TableChange>& tables,
                       const GgufAdapterBase& base, const ExportTarget& target) {
  CheckGgufLimits(config, config.tie_word_embeddings);
  const float alpha = AlphaToWrite(adapter.config());
  GgufMetadata metadata;
  metadata.Add(kGgufArchitecture, GgufArchitectureOf(config));
  metadata.Add(kGgufType, std::string("adapter"));
  metadata.Add(kGgufName, base.name);
  AddBaseModel(base.name, base.repository, metadata);
  if (!base.fingerprint.empty()) metadata.Add(kBaseFingerprintKey, base.fingerprint);
  metadata.Add("adapter.type", std::string("lora"));
  metadata.Add("adapter.lora.alpha", alpha);
  const std::vector<float> expert_scales = ExpertScales(adapter.memory(), weights);
  const bool scales = std::ranges::any_of(adapter.layers(), [](const PerLinear<LoraLinear>& layer) {
    return !layer.side_out.empty() && layer.side_out.front().rank > 0;
  });
  if (scales) metadata.Add(kGgufExpertScales, expert_scales);
  AdapterPlan plan(config, adapter, alpha, target.outtype);
  for (const DecoderTensor& row : DecoderTensors(config)) {
    for (const TableChange& change : tables) {
      if (row.table != TableOf(change)) continue;
      plan.AddTable(row, change);
    }
  }
  plan.AddLayers(expert_scales);
  plan.plan().Write(context, target.path, target.mode, metadata, {});
}

}  // namespace qlora
