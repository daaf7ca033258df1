#include "export/gguf/export_gguf.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/matrix.h"
#include "base/printable.h"
#include "base/text.h"
#include "config/gguf_names.h"
#include "convert/merged_linear.h"
#include "export/gguf/gguf_limits.h"
#include "export/gguf/gguf_metadata.h"
#include "export/gguf/gguf_model_keys.h"
#include "export/gguf/gguf_plan.h"
#include "export/gguf/gguf_stored.h"
#include "export/gguf/importance_use.h"
#include "model/gguf_rows.h"
#include "model/tensor_list.h"
#include "qlora/export_gguf.h"

namespace qlora {
namespace {

class ModelPlan {
 public:
  ModelPlan(Context& context, Memory& memory, const GgufModelSource& model)
      : context_(context),
        memory_(memory),
        config_(model.config),
        weights_(model.weights),
        adapter_(model.adapter),
        file_(model.file),
        importance_(model.importance, model.file),
        stored_(model.stored),
        mix_{.architecture = GgufArchitectureOf(config_),
             .layers = config_.num_hidden_layers,
             .heads = config_.num_attention_heads,
             .kv_heads = HasHeadsOfKeys(0) ? config_.layer(0).num_key_value_heads : 0,
             .experts = config_.experts().num_experts,
             .value_layers = ValueLayers(),
             .tied = weights_.is_tied(),
             .has_importance = model.importance != nullptr} {}

  const GgufPlan& Build() {
    for (const DecoderTensor& row : DecoderTensors(config_)) {
      const std::string& name = row.gguf[0][0].tensor;
      if (row.vector != nullptr) {
        plan_.Vector(name, FloatsOf(weights_.*row.vector));
      } else if (!row.is_head() || !weights_.is_tied()) {
        const WeightView& table = weights_.*row.table;
        const bool in_host = row.table == &DecoderWeights::per_layer_embed;
        GgufTensor& tensor =
            Table(name, table, TypeOf(name, table.cols()), in_host ? HostMemory() : memory_);
        if (ChangesTable(row) || !Keep(tensor)) importance_.Weigh(tensor, row.is_head());
      }
    }
    for (const RopeFactors& factors : GgufRopeFactors(config_)) {
      plan_.Vector(factors.name, factors.values);
    }
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) Layer(l);
    return plan_;
  }

  // As Build, with the tensors of the file in their order and their types: those of which the
  // adapter changes nothing are copied, whatever they are. notes: types that are not written.
  const GgufPlan& BuildAsStored(std::vector<std::string>& notes) {
    ChangedTensors changed(*stored_);
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      changed.AddLayer(l, LayerTensors(config_, l),
                       [&](const LayerTensor& row) { return Changes(row, l); });
    }
    std::vector<bool> done(changed.size());
    for (const TensorInfo& tensor : stored_->tensors()) {
      const std::vector<std::size_t> linears = changed.InPlaceOf(tensor.name);
      for (const std::size_t i : linears) {
        if (!done[i]) Rewrite(changed[i]);
        done[i] = true;
      }
      if (linears.empty() && !RewriteTable(tensor)) plan_.Copy(tensor, {stored_->Bytes(tensor)});
    }
    AddUntiedHead();
    NoteOtherTypes(notes);
    return plan_;
  }

  // Errors: as ImportanceUse::Check.
  void CheckImportance(std::vector<std::string>& notes) const { importance_.Check(plan_, notes); }
  bool weighs() const { return importance_.weighs(); }

  // Of the values that are rounded, the type of the fewest bits; F32 where all are copied.
  TensorType CoarsestType() const {
    TensorType coarsest = DType::kF32;
    for (const GgufTensor& tensor : plan_.tensors()) {
      const TensorType& type = tensor.info.dtype;
      if (tensor.stored.empty() &&
          BytesOf(type, kMaxBlockValues) < BytesOf(coarsest, kMaxBlockValues)) {
        coarsest = type;
      }
    }
    return coarsest;
  }

 private:
  // Whether the adapter changes values of a linear.
  bool Changes(const LayerTensor& row, std::int64_t l) const {
    if (adapter_ == nullptr) return false;
    return std::ranges::any_of(StackOf(adapter_->layers()[l], row),
                               [](const LoraLinear* lora) { return lora->rank > 0; });
  }
  bool ChangesTable(const DecoderTensor& row) const {
    if (adapter_ == nullptr || row.table == &DecoderWeights::per_layer_embed) return false;
    return (row.is_head() ? adapter_->head() : adapter_->embedding()) != nullptr;
  }

  // What is rounded once is not rounded again: a tensor with the values of the file keeps the bytes
  // that it has there in this type.
  bool Keep(GgufTensor& tensor) const {
    const TensorInfo* stored = stored_ == nullptr ? nullptr : stored_->Find(tensor.info.name);
    if (stored == nullptr || stored->dtype != tensor.info.dtype ||
        stored->shape != tensor.info.shape ||
        stored_->Find(StemOf(tensor.info.name) + ".scale") != nullptr) {
      return false;
    }
    tensor.stored = {stored_->Bytes(*stored)};
    return true;
  }

  TensorType StoredType(const GgufSpelling& spelling) const {
    TensorType most = stored_->Find(spelling[0].tensor)->dtype;
    for (const GgufPiece& piece : spelling) {
      const TensorType type = stored_->Find(piece.tensor)->dtype;
      if (BytesOf(type, kMaxBlockValues) > BytesOf(most, kMaxBlockValues)) most = type;
    }
    return WritableType(most);
  }

  void Rewrite(const ChangedLinear& linear) {
    const auto& [l, row, spelling, changes] = linear;
    const TensorType type = StoredType(spelling);
    for (const std::string& tensor : GgufTensorsOf(row)) {
      if (linear.is_recut()) LinearBias(row, l, tensor);
      if (changes || !CopyRows(linear)) importance_.Weigh(AddLinear(row, l, tensor, type), true);
    }
  }

  // The rows of a linear out of a tensor of several; false where they are not there as they are.
  bool CopyRows(const ChangedLinear& linear) {
    const LayerTensor& row = linear.row;
    if (linear.stored.size() > 1 || row.gguf[0].size() > 1) return false;
    const GgufPiece& piece = linear.stored[0];
    if (stored_->Find(StemOf(piece.tensor) + ".scale") != nullptr) return false;
    const TensorInfo& tensor = *stored_->Find(piece.tensor);
    const std::size_t size = BytesOf(tensor.dtype, row.shape.in);
    std::vector<std::span<const std::byte>> parts;
    for (std::int64_t e = 0; e < row.matrices(); ++e) {
      parts.push_back(
          stored_->Bytes(tensor).subspan((e * piece.of + piece.first) * size, piece.rows * size));
    }
    TensorInfo info{row.gguf[0][0].tensor, tensor.dtype, {row.shape.out, row.shape.in}};
    if (row.experts > 1) info.shape.insert(info.shape.begin(), row.experts);
    plan_.Copy(std::move(info), std::move(parts));
    return true;
  }

  // False where the tensor is no table that the adapter changes.
  bool RewriteTable(const TensorInfo& tensor) {
    for (const DecoderTensor& row : DecoderTensors(config_)) {
      if (row.table == nullptr || !ChangesTable(row)) continue;
      const std::string& name = row.gguf[0][0].tensor;
      if (row.is_head() && tensor.name == StemOf(name) + ".scale") return true;
      if (tensor.name != name) continue;
      importance_.Weigh(Table(name, weights_.*row.table, WritableType(tensor.dtype), memory_),
                        row.is_head());
      return true;
    }
    return false;
  }

  // A file has no head where it is tied, which an adapter of one of the two tables changes.
  void AddUntiedHead() {
    constexpr const char* kHead = "output.weight";
    if (weights_.is_tied() || stored_->Find(kHead) != nullptr) return;
    const TensorInfo& table = *stored_->Find("token_embd.weight");
    if (adapter_->head() != nullptr) {
      importance_.Weigh(Table(kHead, weights_.head, WritableType(table.dtype), memory_), true);
    } else {
      plan_.Copy({kHead, table.dtype, table.shape}, {stored_->Bytes(table)});
    }
  }

  void NoteOtherTypes(std::vector<std::string>& notes) const {
    std::map<std::string, std::int64_t> counts;
    for (const GgufTensor& tensor : plan_.tensors()) {
      const TensorInfo* stored = stored_->Find(tensor.info.name);
      if (stored == nullptr || stored->dtype == tensor.info.dtype) continue;
      ++counts[fmt::format("{} instead of {}", NameOf(tensor.info.dtype), NameOf(stored->dtype))];
    }
    for (const auto& [types, count] : counts) {
      notes.push_back(
          fmt::format("{} that the adapter changes {} {}, which is read and not written",
                      Counted(count, "tensor"), count == 1 ? "is" : "are", types));
    }
  }

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

  void Linears(const LayerTensor& row, std::int64_t l, const std::string& weight) {
    LinearBias(row, l, weight);
    GgufTensor& tensor = AddLinear(row, l, weight, TypeOf(weight, row.shape.in));
    if (Changes(row, l) || !Keep(tensor)) importance_.Weigh(tensor, true);
  }

  // The source row of each row of a tensor.
  static std::vector<std::int64_t> OrderOf(const LinearRows& rows, const LayerTensor& row) {
    if (!rows.order.empty()) return rows.order;
    std::vector<std::int64_t> order(row.shape.out);
    std::iota(order.begin(), order.end(), std::int64_t{0});
    return order;
  }

  void LinearBias(const LayerTensor& row, std::int64_t l, const std::string& weight) {
    const std::vector<const FrozenLinear*> stack = StackOf(weights_.layers[l].linears, row);
    if (stack[0]->bias.empty()) return;
    const LinearRows rows = GgufRowsOf(config_, l, row, weight);
    Biases(StemOf(weight) + ".bias", stack, OrderOf(rows, row), rows.factor);
  }

  // Adds the linears that share one tensor.
  GgufTensor& AddLinear(const LayerTensor& row, std::int64_t l, const std::string& weight,
                        TensorType type) {
    const LinearRows rows = GgufRowsOf(config_, l, row, weight);
    const std::vector<const FrozenLinear*> stack = StackOf(weights_.layers[l].linears, row);
    std::vector<const LoraLinear*> loras;
    if (adapter_ != nullptr) loras = StackOf(adapter_->layers()[l], row);
    const std::vector<std::int64_t> order = OrderOf(rows, row);
    const float factor = rows.factor;
    const std::int64_t out_rows = std::ssize(order);
    const std::int64_t cols = row.shape.in;
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
    if (is_vector || is_router) type = DType::kF32;
    GgufTensor& tensor = plan_.Stack(weight, type, out_rows, cols, std::move(merged));
    if (is_vector) tensor.info.shape = {cols};
    if (changes) tensor.unchanged = StackedRows(out_rows, cols, std::move(unchanged));
    return tensor;
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
  ImportanceUse importance_;
  const GgufReader* stored_;
  GgufMixModel mix_;
  const FrozenLinear* current_ = nullptr;
  std::optional<MergedLinear> merged_;
  GgufPlan plan_;
};

}  // namespace

const GgufFileType& ParseOuttype(const std::string& name) {
  if (const GgufFileType* file = FindGgufFileType(name)) return *file;
  std::vector<std::string> names;
  for (const GgufFileType& file : GgufFileTypes()) names.push_back(LowerCase(file.name));
  ThrowInvalidInput("outtype expects one of {}, found '{}'", fmt::join(names, ", "), name);
}

TensorType ExportGgufModel(Context& context, Memory& memory, const GgufModelSource& model,
                           const ExportTarget& target, const ProgressFn& progress,
                           std::vector<std::string>& notes) {
  // What nobody changes is as right as it was.
  if (!model.keeps_types || model.adapter != nullptr) {
    CheckGgufLimits(model.config, model.weights.is_tied());
  }
  ModelPlan plan(context, memory, model);
  const GgufPlan& tensors = model.keeps_types ? plan.BuildAsStored(notes) : plan.Build();
  plan.CheckImportance(notes);
  const ImportanceMatrix* importance = plan.weighs() ? model.importance : nullptr;
  const TensorType coarsest = plan.CoarsestType();
  const GgufMetadata metadata = model.keeps_types
                                    ? GgufKeysAsStored(model, coarsest, importance, notes)
                                    : GgufKeysOf(model, importance, notes);
  tensors.Write(context, target.path, target.mode, metadata, progress, model.check);
  return model.keeps_types ? coarsest : model.file.base;
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
