// Adapters to and from PEFT directories.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"
#include "base/matrix.h"
#include "io/peft.h"
#include "model/lora.h"

namespace qlora {
namespace {

// Refuses a tensor with a NaN or Inf. values: those of the tensor, not necessarily aligned, so each
// is converted alone.
void CheckFinite(const std::byte* values, const TensorInfo& tensor, const std::string& file) {
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    float value = 0;
    ConvertToWide(values + BytesOf(tensor.dtype, i), tensor.dtype, 0, MakeView(&value, 1, 1));
    if (std::isfinite(value)) continue;
    ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", file, tensor.name, i);
  }
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

}  // namespace

LoraAdapter LoraAdapter::Load(const std::filesystem::path& dir, const DecoderConfig& decoder,
                              Memory& memory, DType wide) {
  const Adapter peft = OpenAdapter(dir);
  LoraAdapter adapter(peft.config, decoder, memory, wide);
  adapter.Read(dir, peft);
  return adapter;
}

void LoraAdapter::Read(const std::filesystem::path& dir) { Read(dir, OpenAdapter(dir)); }

void LoraAdapter::Read(const std::filesystem::path& dir, const Adapter& peft) {
  // Every target must have tensors, and every tensor a target: a difference means that the adapter
  // belongs to another model, and would otherwise be silent.
  AllocateParameters();
  std::set<std::string> used;
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](LoraLinear& lora) {
      if (lora.rank == 0) return;
      const auto module = std::find_if(peft.modules.begin(), peft.modules.end(),
                                       [&](const AdapterModule& m) { return m.path == lora.path; });
      if (module == peft.modules.end()) {
        ThrowInvalidInput(
            "{}: adapter_config.json targets '{}' but there are no tensors for it; is this an "
            "adapter of another model?",
            dir.string(), lora.path);
      }
      ReadMatrix(peft, *module->a, *memory_, lora.a);
      ReadMatrix(peft, *module->b, *memory_, lora.b);
      if (lora.is_dora()) ReadMatrix(peft, *module->magnitude, *memory_, lora.magnitude);
      used.insert(lora.path);
    });
  }
  for (TrainedModule& module : modules_) {
    const auto stored =
        std::find_if(peft.replaced.begin(), peft.replaced.end(),
                     [&](const ReplacedWeight& w) { return w.name == module.name; });
    if (stored == peft.replaced.end()) {
      ThrowInvalidInput("{}: modules_to_save names '{}' but there is no tensor for it",
                        dir.string(), module.name);
    }
    ReadMatrix(peft, *stored->tensor, *memory_, module.weight);
  }
  for (const ReplacedWeight& stored : peft.replaced) {
    if (Find(stored.name) != nullptr) continue;
    ThrowInvalidInput(
        "{}: the adapter replaces '{}', which modules_to_save does not name or this program cannot "
        "replace",
        dir.string(), stored.name);
  }
  for (const AdapterModule& module : peft.modules) {
    if (used.contains(module.path)) continue;
    if (has_experts_ && module.path.ends_with(".gate")) {
      ThrowInvalidInput(
          "{}: the adapter has tensors for '{}', the router of a mixture of experts, and adapters "
          "of routers are not supported; train without it (PEFT's all-linear targets the router)",
          dir.string(), module.path);
    }
    ThrowInvalidInput(
        "{}: the adapter has tensors for '{}', which this model does not have or "
        "adapter_config.json does not target; is this an adapter of another model?",
        dir.string(), module.path);
  }
}

void LoraAdapter::Save(const std::filesystem::path& dir, DType dtype) const {
  std::vector<AdapterWeights> weights;
  for (const PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](const LoraLinear& lora) {
      if (lora.rank > 0) weights.push_back({lora.path, lora.a, lora.b, lora.magnitude});
    });
  }
  std::vector<ReplacedMatrix> replaced;
  for (const TrainedModule& module : modules_) replaced.push_back({module.name, module.weight});
  WriteAdapter(dir, config_, weights, dtype, replaced, *memory_);
}

}  // namespace qlora
