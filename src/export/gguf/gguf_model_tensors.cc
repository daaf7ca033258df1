#include "export/gguf/gguf_model_tensors.h"

#include <algorithm>
#include <numeric>

#include "base/matrix.h"
#include "model/gguf_rows.h"

namespace qlora {
namespace {

// The source row of each row of a tensor.
std::vector<std::int64_t> OrderOf(const LinearRows& rows, const LayerTensor& row) {
  if (!rows.order.empty()) return rows.order;
  std::vector<std::int64_t> order(row.shape.out);
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

}  // namespace

GgufModelTensors::GgufModelTensors(Context& context, Memory& memory, const GgufModelSource& model,
                                   GgufPlan& plan)
    : context_(context),
      memory_(memory),
      config_(model.config),
      weights_(model.weights),
      adapter_(model.adapter),
      plan_(plan) {}

bool GgufModelTensors::Changes(const LayerTensor& row, std::int64_t l) const {
  if (adapter_ == nullptr) return false;
  return std::ranges::any_of(StackOf(adapter_->layers()[l], row),
                             [](const LoraLinear* lora) { return lora->rank > 0; });
}

bool GgufModelTensors::ChangesTable(const DecoderTensor& row) const {
  if (adapter_ == nullptr || row.table == &DecoderWeights::per_layer_embed) return false;
  return (row.is_head() ? adapter_->head() : adapter_->embedding()) != nullptr;
}

GgufTensor& GgufModelTensors::AddTable(const std::string& name, const WeightView& table,
                                       TensorType type) {
  // Rows of the table per layer are looked up by the host.
  Memory& memory = &table == &weights_.per_layer_embed ? HostMemory() : memory_;
  return plan_.Matrix(name, type, table.rows(), table.cols(),
                      [&memory, table](std::int64_t first, std::int64_t count, float* out) {
                        const HostWeight rows(memory, table, first, count);
                        for (std::int64_t r = 0; r < count; ++r)
                          rows.Read(r, out + r * table.cols());
                      });
}

void GgufModelTensors::AddVector(const std::string& name, const ConstMatrixView& values) {
  plan_.Vector(name, FloatsOf(values));
}

GgufTensor& GgufModelTensors::AddLinear(const LayerTensor& row, std::int64_t l,
                                        const std::string& weight, TensorType type) {
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

void GgufModelTensors::AddBias(const LayerTensor& row, std::int64_t l, const std::string& weight) {
  const std::vector<const FrozenLinear*> stack = StackOf(weights_.layers[l].linears, row);
  if (stack[0]->bias.empty()) return;
  const LinearRows rows = GgufRowsOf(config_, l, row, weight);
  Biases(StemOf(weight) + ".bias", stack, OrderOf(rows, row), rows.factor);
}

void GgufModelTensors::AddValues(const LayerTensor& row, std::int64_t l) {
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

std::vector<float> GgufModelTensors::FloatsOf(const ConstMatrixView& m) const {
  if (m.empty()) return {};
  const std::vector<double> values = DownloadReal(memory_, m);
  return {values.begin(), values.end()};
}

const MergedLinear& GgufModelTensors::Merged(const FrozenLinear* frozen, const LoraLinear* lora) {
  // Rows of one linear come in several pieces, one after the other.
  if (current_ != frozen) {
    merged_.reset();
    merged_.emplace(memory_, frozen->weight, lora);
    current_ = frozen;
  }
  return *merged_;
}

void GgufModelTensors::Biases(const std::string& name,
                              const std::vector<const FrozenLinear*>& stack,
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

}  // namespace qlora
