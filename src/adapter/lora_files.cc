// An adapter and its PEFT folder. Folders have the rows and columns of the checkpoint, also where
// the model has those of a GGUF file.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "adapter/expert_stack.h"
#include "adapter/fitted_adapter.h"
#include "adapter/lora.h"
#include "base/check.h"
#include "base/matrix.h"
#include "io/peft/peft.h"
#include "model/gguf_rows.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

// Refuses a tensor with a NaN or Inf. values: the data of the tensor, not necessarily aligned, so
// each is converted alone.
void CheckFinite(const std::byte* values, const TensorInfo& tensor, const std::string& file) {
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    float value = 0;
    ConvertToWide(values + BytesOf(tensor.dtype, i), tensor.dtype, 0, MakeView(&value, 1, 1));
    if (std::isfinite(value)) continue;
    ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", file, tensor.name, i);
  }
}

// Row, or column, order[i] of m becomes number i of out, which may be m. An empty order changes
// nothing.
void Reorder(Memory& memory, const MatrixView& m, const std::vector<std::int64_t>& order,
             bool is_rows, const MatrixView& out) {
  if (order.empty()) return;
  const std::vector<double> values = DownloadReal(memory, m);
  std::vector<float> moved(values.size());
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const std::int64_t source = is_rows ? order[r] * m.cols + c : r * m.cols + order[c];
      moved[r * m.cols + c] = static_cast<float>(values[source]);
    }
  }
  UploadWide(memory, moved, out);
}

// Converts a tensor to the type of `out` and uploads it there. A vector fits a matrix of one row:
// magnitudes are stored as (O). Errors: InvalidInput for another shape, a NaN or Inf.
void ReadMatrix(const Adapter& peft, const TensorInfo& tensor, Memory& memory,
                const MatrixView& out) {
  const std::string file = peft.tensors->FileOf(tensor);
  const bool fits = tensor.shape.size() == 1
                        ? out.rows == 1 && tensor.shape[0] == out.cols
                        : tensor.shape == std::vector<std::int64_t>{out.rows, out.cols};
  if (!fits) {
    ThrowInvalidInput(
        "{}: tensor '{}' has shape [{}], this model expects [{}, {}]; it is an adapter of another "
        "model",
        file, tensor.name, fmt::join(tensor.shape, ", "), out.rows, out.cols);
  }
  const std::byte* values = peft.tensors->Bytes(tensor).data();
  CheckFinite(values, tensor, file);
  UploadWide(memory, values, tensor.dtype, 0, out);
}

std::vector<float> FloatsOf(Memory& memory, const MatrixView& m) {
  const std::vector<double> values = DownloadReal(memory, m);
  return {values.begin(), values.end()};
}

}  // namespace

// ---- The order of rows and columns.

void LoraAdapter::SetOrders(const DecoderConfig& decoder) {
  if (GgufValueHeads(decoder).empty()) return;
  DecoderConfig checkpoint = decoder;
  checkpoint.delta_rule.tiled = false;
  using Order = std::shared_ptr<const LinearRows>;
  std::optional<PerLinear<Order>> orders;  // of all such layers
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    if (decoder.layers[l].mixer != Mixer::kDeltaRule) continue;
    if (!orders) {
      orders.emplace();
      ForEachLinear(LayerTensors(checkpoint, l), [&](const LayerTensor& row, std::int64_t) {
        const bool moves = row.head_rows > 0;
        Append(*orders, row.group,
               moves ? std::make_shared<const LinearRows>(
                           GgufRowsOf(checkpoint, l, row, row.gguf[0][0].tensor))
                     : nullptr);
      });
    }
    ForEachPair(layers_[l], *orders,
                [](LoraLinear& lora, const Order& order) { lora.order = order; });
  }
}

void LoraAdapter::ToModelOrder(LoraLinear& lora) const {
  if (lora.order == nullptr || lora.rank == 0) return;
  Reorder(*memory_, lora.a, lora.order->columns, false, lora.a);
  Reorder(*memory_, lora.b, lora.order->order, true, lora.b);
  if (lora.is_dora()) Reorder(*memory_, lora.magnitude, lora.order->order, false, lora.magnitude);
}

// ---- Reading and writing.

LoraAdapter LoraAdapter::Load(const std::filesystem::path& dir, const DecoderConfig& decoder,
                              Memory& memory, DType wide, const ProgressFn& progress) {
  const Adapter peft = OpenAdapterFor(dir, decoder);
  LoraAdapter adapter(peft.config, decoder, memory, wide, &peft, {});
  adapter.Read(dir, peft, progress);
  if (!peft.unknown_keys.empty()) {
    adapter.notes_.push_back(fmt::format("{}: keys that are not known here have no effect: {}",
                                         (dir / kAdapterConfig).string(),
                                         fmt::join(peft.unknown_keys, ", ")));
  }
  if (!peft.left_out.empty()) {
    adapter.notes_.push_back(fmt::format(
        "{}: modules outside of the text model are left out ({}, {} in all): images and sound are "
        "not read here",
        dir.string(), peft.left_out.front(), peft.left_out.size()));
  }
  if (!peft.unused.empty()) {
    adapter.notes_.push_back(
        fmt::format("{}: the LoRA of {} is left out ({} such modules): the layer attends to the "
                    "keys and values "
                    "of another, and the model does not use its own",
                    dir.string(), peft.unused.front(), peft.unused.size()));
  }
  return adapter;
}

LoraAdapter LoraAdapter::Shape(const std::filesystem::path& dir, const DecoderConfig& decoder,
                               Memory& memory, DType wide) {
  const Adapter peft = OpenAdapterFor(dir, decoder);
  return LoraAdapter(peft.config, decoder, memory, wide, &peft, {});
}

void LoraAdapter::Read(const std::filesystem::path& dir) {
  Read(dir, OpenAdapterFor(dir, decoder_), {});
}

// Every target must have tensors, and every tensor a target: a difference means that the adapter
// belongs to another model, and would otherwise be silent.
void LoraAdapter::Read(const std::filesystem::path& dir, const Adapter& peft,
                       const ProgressFn& progress) {
  Allocate();
  const std::set<const TensorInfo*> read = ReadLinears(dir, peft, progress);
  ReadModules(dir, peft);
  CheckAllRead(dir, peft, read);
}

std::set<const TensorInfo*> LoraAdapter::ReadLinears(const std::filesystem::path& dir,
                                                     const Adapter& peft,
                                                     const ProgressFn& progress) {
  const std::int64_t experts = decoder_.experts().num_experts;
  for (const ExpertStack& stack : peft.stacks) {
    const std::int64_t rows = stack.a->shape.empty() ? 0 : stack.a->shape[0];
    if (experts > 0 && rows % experts == 0) continue;
    ThrowInvalidInput("{}: tensor '{}': expected rows for each of {} experts, found {}",
                      dir.string(), stack.a->name, experts, rows);
  }
  ExpertStackReader stacks(peft, decoder_, *memory_);
  std::set<const TensorInfo*> read;
  std::map<std::string_view, const AdapterModule*> modules;
  for (const AdapterModule& module : peft.modules) modules.emplace(module.path, &module);
  std::int64_t done = 0;
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](LoraLinear& lora) {
      if (lora.rank == 0) return;
      if (const ExpertStack* stack = stacks.Read(lora)) {
        read.insert(stack->a);
        return;
      }
      const auto found = modules.find(lora.path);
      if (found == modules.end()) {
        ThrowInvalidInput(
            "{}: adapter_config.json targets '{}' but there are no tensors for it; is this an "
            "adapter of another model?",
            dir.string(), lora.path);
      }
      const AdapterModule& module = *found->second;
      ReadMatrix(peft, *module.a, *memory_, lora.a);
      ReadMatrix(peft, *module.b, *memory_, lora.b);
      if (lora.is_dora()) ReadMatrix(peft, *module.magnitude, *memory_, lora.magnitude);
      ToModelOrder(lora);
      read.insert(module.a);
    });
    if (progress) progress(++done, std::ssize(layers_));
  }
  return read;
}

void LoraAdapter::ReadModules(const std::filesystem::path& dir, const Adapter& peft) {
  for (TrainedModule& module : modules_) {
    const auto stored = std::ranges::find_if(
        peft.replaced, [&](const ReplacedWeight& w) { return w.name == module.name; });
    const bool listed = std::ranges::any_of(config_.modules_to_save, [&](const std::string& name) {
      return module.name.ends_with(name + ".weight");
    });
    // FoldTables copies the base's.
    if (stored == peft.replaced.end() && !listed) continue;
    if (stored == peft.replaced.end()) {
      ThrowInvalidInput("{}: modules_to_save names '{}' but there is no tensor for it",
                        dir.string(), module.name);
    }
    ReadMatrix(peft, *stored->tensor, *memory_, module.weight);
  }
}

void LoraAdapter::CheckAllRead(const std::filesystem::path& dir, const Adapter& peft,
                               const std::set<const TensorInfo*>& read) const {
  for (const ReplacedWeight& stored : peft.replaced) {
    if (Find(stored.name) != nullptr) continue;
    if (replaced_ != nullptr && replaced_->contains(stored.name)) continue;
    ThrowInvalidInput(
        "{}: the adapter replaces '{}', which modules_to_save does not name or this program cannot "
        "replace",
        dir.string(), stored.name);
  }
  const auto refuse_unread = [&](const std::string& path) {
    ThrowInvalidInput(
        "{}: the adapter has tensors for '{}', which this model does not have or "
        "adapter_config.json does not target; is this an adapter of another model?",
        dir.string(), path);
  };
  for (const ExpertStack& stack : peft.stacks) {
    if (!read.contains(stack.a)) refuse_unread(stack.experts + "." + stack.parameter);
  }
  for (const AdapterModule& module : peft.modules) {
    if (read.contains(module.a)) continue;
    if (IsTable(module.path) && Find(module.path + ".weight") != nullptr) continue;
    if (replaced_ != nullptr && replaced_->contains(module.path + ".weight")) continue;
    refuse_unread(module.path);
  }
}

void LoraAdapter::Save(const std::filesystem::path& dir, DType dtype) const {
  std::vector<AdapterWeights> weights;
  std::vector<Arena> copies;
  // A matrix, or where the checkpoint has another order a copy in that order.
  const auto stored = [&](const MatrixView& m, const std::vector<std::int64_t>& order,
                          bool is_rows) {
    if (order.empty() || m.empty()) return m;
    copies.emplace_back(BytesOf(wide_, m.rows * m.cols), *memory_);
    const MatrixView copy{copies.back().data(), wide_, m.rows, m.cols, m.cols};
    std::vector<std::int64_t> inverse(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) inverse[order[i]] = i;
    Reorder(*memory_, m, inverse, is_rows, copy);
    return copy;
  };
  const bool has_halves = WritesParameters(config_, decoder_);
  const auto stacks_halves = [&](const std::string& path) {
    return has_halves && path.find(".experts.") != std::string::npos;
  };
  std::vector<LoraValues> experts;
  for (const PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](const LoraLinear& lora) {
      if (lora.rank == 0) return;
      if (IsJoinedExpert(decoder_, lora.path) || stacks_halves(lora.path)) {
        experts.push_back({.path = lora.path,
                           .in = lora.in,
                           .out = lora.out,
                           .rank = lora.rank,
                           .scale = ScaleOf(config_, lora.path),
                           .a = FloatsOf(*memory_, lora.a),
                           .b = FloatsOf(*memory_, lora.b)});
        return;
      }
      const LinearRows order = lora.order == nullptr ? LinearRows{} : *lora.order;
      weights.push_back({lora.path, stored(lora.a, order.columns, false),
                         stored(lora.b, order.order, true),
                         stored(lora.magnitude, order.order, false)});
    });
  }
  const auto uploaded = [&](const std::vector<float>& values, std::int64_t rows) {
    const std::int64_t cols = std::ssize(values) / rows;
    copies.emplace_back(BytesOf(wide_, rows * cols), *memory_);
    const MatrixView copy{copies.back().data(), wide_, rows, cols, cols};
    UploadWide(*memory_, values, copy);
    return copy;
  };
  const AdapterConfig config = has_halves ? ConfigOfParameters(config_, decoder_) : config_;
  for (const StackedLora& stack : StackExperts(experts, decoder_, has_halves)) {
    weights.push_back({stack.path,
                       uploaded(stack.a, stack.experts * stack.rank),
                       uploaded(stack.b, stack.out),
                       {},
                       stack.wrapper,
                       stack.experts});
  }
  std::vector<ReplacedMatrix> replaced;
  for (const TrainedModule& module : modules_) replaced.push_back({module.name, module.weight});
  WriteAdapter(dir, config, weights, dtype, replaced, *memory_);
}

}  // namespace qlora
