#include "export/gguf/export_gguf.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"
#include "config/gguf_names.h"
#include "export/gguf/gguf_limits.h"
#include "export/gguf/gguf_metadata.h"
#include "export/gguf/gguf_model_keys.h"
#include "export/gguf/gguf_model_tensors.h"
#include "export/gguf/gguf_plan.h"
#include "export/gguf/gguf_stored.h"
#include "export/gguf/importance_use.h"
#include "model/gguf_rows.h"
#include "model/tensor_list.h"
#include "qlora/export_gguf.h"

namespace qlora {
namespace {

// Plans a file in the types of a kind of file.
class TypedPlan {
 public:
  // All must outlive this.
  TypedPlan(const GgufModelSource& model, GgufModelTensors& tensors, ImportanceUse& importance,
            GgufPlan& plan)
      : config_(model.config),
        weights_(model.weights),
        file_(model.file),
        stored_(model.stored),
        tensors_(tensors),
        importance_(importance),
        plan_(plan),
        mix_{.architecture = GgufArchitectureOf(config_),
             .layers = config_.num_hidden_layers,
             .heads = config_.num_attention_heads,
             .kv_heads = HasHeadsOfKeys(0) ? config_.layer(0).num_key_value_heads : 0,
             .experts = config_.experts().num_experts,
             .value_layers = ValueLayers(),
             .tied = weights_.is_tied(),
             .has_importance = model.importance != nullptr} {}

  void Build() {
    for (const DecoderTensor& row : DecoderTensors(config_)) {
      const std::string& name = row.gguf[0][0].tensor;
      if (row.vector != nullptr) {
        tensors_.AddVector(name, weights_.*row.vector);
      } else if (!row.is_head() || !weights_.is_tied()) {
        const WeightView& table = weights_.*row.table;
        GgufTensor& tensor = tensors_.AddTable(name, table, TypeOf(name, table.cols()));
        if (tensors_.ChangesTable(row) || !Keep(tensor)) importance_.Weigh(tensor, row.is_head());
      }
    }
    for (const RopeFactors& factors : GgufRopeFactors(config_)) {
      plan_.Vector(factors.name, factors.values);
    }
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) Layer(l);
  }

 private:
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

  void Layer(std::int64_t l) {
    for (const LayerTensor& row : LayerTensors(config_, l)) {
      for (const std::string& tensor : GgufTensorsOf(row)) {
        if (row.kind == TensorKind::kLinear) {
          Linears(row, l, tensor);
        } else if (row.kind == TensorKind::kTable) {
          // float32: a rounded logit may choose another expert.
          tensors_.AddTable(tensor, weights_.layers[l].router, DType::kF32);
        } else {
          tensors_.AddValues(row, l);
        }
      }
    }
  }

  void Linears(const LayerTensor& row, std::int64_t l, const std::string& weight) {
    tensors_.AddBias(row, l, weight);
    GgufTensor& tensor = tensors_.AddLinear(row, l, weight, TypeOf(weight, row.shape.in));
    if (tensors_.Changes(row, l) || !Keep(tensor)) importance_.Weigh(tensor, true);
  }

  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  const GgufFileType& file_;
  const GgufReader* stored_;
  GgufModelTensors& tensors_;
  ImportanceUse& importance_;
  GgufPlan& plan_;
  const GgufMixModel mix_;
};

// Plans a file with the tensors of another one in their order and their types: those of which the
// adapter changes nothing are copied, whatever they are.
class StoredPlan {
 public:
  // All must outlive this.
  StoredPlan(const GgufModelSource& model, GgufModelTensors& tensors, ImportanceUse& importance,
             GgufPlan& plan)
      : config_(model.config),
        weights_(model.weights),
        adapter_(model.adapter),
        stored_(*model.stored),
        tensors_(tensors),
        importance_(importance),
        plan_(plan) {}

  // notes: types that are not written.
  void Build(std::vector<std::string>& notes) {
    ChangedTensors changed(stored_);
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      changed.AddLayer(l, LayerTensors(config_, l),
                       [&](const LayerTensor& row) { return tensors_.Changes(row, l); });
    }
    std::vector<bool> done(changed.size());
    for (const TensorInfo& tensor : stored_.tensors()) {
      const std::vector<std::size_t> linears = changed.InPlaceOf(tensor.name);
      for (const std::size_t i : linears) {
        if (!done[i]) Rewrite(changed[i]);
        done[i] = true;
      }
      if (linears.empty() && !RewriteTable(tensor)) plan_.Copy(tensor, {stored_.Bytes(tensor)});
    }
    AddUntiedHead();
    NoteOtherTypes(notes);
  }

 private:
  TensorType StoredType(const GgufSpelling& spelling) const {
    TensorType most = stored_.Find(spelling[0].tensor)->dtype;
    for (const GgufPiece& piece : spelling) {
      const TensorType type = stored_.Find(piece.tensor)->dtype;
      if (BytesOf(type, kMaxBlockValues) > BytesOf(most, kMaxBlockValues)) most = type;
    }
    return WritableType(most);
  }

  void Rewrite(const ChangedLinear& linear) {
    const auto& [l, row, spelling, changes] = linear;
    const TensorType type = StoredType(spelling);
    for (const std::string& tensor : GgufTensorsOf(row)) {
      if (linear.is_recut()) tensors_.AddBias(row, l, tensor);
      if (!changes && CopyRows(linear)) continue;
      importance_.Weigh(tensors_.AddLinear(row, l, tensor, type), true);
    }
  }

  // The rows of a linear out of a tensor of several; false where they are not there as they are.
  bool CopyRows(const ChangedLinear& linear) {
    const LayerTensor& row = linear.row;
    if (linear.stored.size() > 1 || row.gguf[0].size() > 1) return false;
    const GgufPiece& piece = linear.stored[0];
    if (stored_.Find(StemOf(piece.tensor) + ".scale") != nullptr) return false;
    const TensorInfo& tensor = *stored_.Find(piece.tensor);
    const std::size_t size = BytesOf(tensor.dtype, row.shape.in);
    std::vector<std::span<const std::byte>> parts;
    for (std::int64_t e = 0; e < row.matrices(); ++e) {
      parts.push_back(
          stored_.Bytes(tensor).subspan((e * piece.of + piece.first) * size, piece.rows * size));
    }
    TensorInfo info{row.gguf[0][0].tensor, tensor.dtype, {row.shape.out, row.shape.in}};
    if (row.experts > 1) info.shape.insert(info.shape.begin(), row.experts);
    plan_.Copy(std::move(info), std::move(parts));
    return true;
  }

  // False where the tensor is no table that the adapter changes.
  bool RewriteTable(const TensorInfo& tensor) {
    for (const DecoderTensor& row : DecoderTensors(config_)) {
      if (row.table == nullptr || !tensors_.ChangesTable(row)) continue;
      const std::string& name = row.gguf[0][0].tensor;
      if (row.is_head() && tensor.name == StemOf(name) + ".scale") return true;
      if (tensor.name != name) continue;
      importance_.Weigh(tensors_.AddTable(name, weights_.*row.table, WritableType(tensor.dtype)),
                        row.is_head());
      return true;
    }
    return false;
  }

  // A file has no head where it is tied, which an adapter of one of the two tables changes.
  void AddUntiedHead() {
    if (weights_.is_tied() || stored_.Find(kGgufHead) != nullptr) return;
    const TensorInfo& table = *stored_.Find(kGgufEmbedding);
    if (adapter_->head() != nullptr) {
      importance_.Weigh(tensors_.AddTable(kGgufHead, weights_.head, WritableType(table.dtype)),
                        true);
    } else {
      plan_.Copy({kGgufHead, table.dtype, table.shape}, {stored_.Bytes(table)});
    }
  }

  void NoteOtherTypes(std::vector<std::string>& notes) const {
    std::map<std::string, std::int64_t> counts;
    for (const GgufTensor& tensor : plan_.tensors()) {
      const TensorInfo* stored = stored_.Find(tensor.info.name);
      if (stored == nullptr || stored->dtype == tensor.info.dtype) continue;
      ++counts[fmt::format("{} instead of {}", NameOf(tensor.info.dtype), NameOf(stored->dtype))];
    }
    for (const auto& [types, count] : counts) {
      notes.push_back(
          fmt::format("{} that the adapter changes {} {}, which is read and not written",
                      Counted(count, "tensor"), count == 1 ? "is" : "are", types));
    }
  }

  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  const LoraAdapter* adapter_;
  const GgufReader& stored_;
  GgufModelTensors& tensors_;
  ImportanceUse& importance_;
  GgufPlan& plan_;
};

// Of the values that are rounded, the type of the fewest bits; F32 where all are copied.
TensorType CoarsestType(const GgufPlan& plan) {
  TensorType coarsest = DType::kF32;
  for (const GgufTensor& tensor : plan.tensors()) {
    const TensorType& type = tensor.info.dtype;
    if (tensor.stored.empty() &&
        BytesOf(type, kMaxBlockValues) < BytesOf(coarsest, kMaxBlockValues)) {
      coarsest = type;
    }
  }
  return coarsest;
}

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
  GgufPlan plan;
  GgufModelTensors tensors(context, memory, model, plan);
  ImportanceUse importance_use(model.importance, model.file);
  if (model.keeps_types) {
    StoredPlan(model, tensors, importance_use, plan).Build(notes);
  } else {
    TypedPlan(model, tensors, importance_use, plan).Build();
  }
  importance_use.Check(plan, notes);
  const ImportanceMatrix* importance = importance_use.weighs() ? model.importance : nullptr;
  const TensorType coarsest = CoarsestType(plan);
  const GgufMetadata metadata = model.keeps_types
                                    ? GgufKeysAsStored(model, coarsest, importance, notes)
                                    : GgufKeysOf(model, importance, notes);
  plan.Write(context, target.path, target.mode, metadata, progress, model.check);
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
