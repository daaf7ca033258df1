// Adapters to and from PEFT directories.
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "base/check.h"
#include "base/matrix.h"
#include "model/lora.h"

namespace qlora {

LoraAdapter LoraAdapter::Load(const std::filesystem::path& dir, const DecoderConfig& decoder,
                              DType wide) {
  const PeftAdapter peft = OpenPeftAdapter(dir);
  LoraAdapter adapter(peft.config, decoder, wide);
  std::set<std::string> known;
  const auto read = [&](const std::string& name, MatrixView out) {
    known.insert(name);
    const TensorInfo* tensor = peft.tensors->Find(name);
    if (tensor == nullptr) {
      ThrowInvalidInput(
          "{}: tensor '{}' is missing, but adapter_config.json targets its linear; is this an "
          "adapter of another model?",
          dir.string(), name);
    }
    if (tensor->shape != std::vector<std::int64_t>{out.rows, out.cols}) {
      ThrowInvalidInput(
          "{}: tensor '{}' has shape [{}], this model expects [{}, {}]; it is an adapter of "
          "another "
          "model",
          dir.string(), name, fmt::join(tensor->shape, ", "), out.rows, out.cols);
    }
    const MatrixView flat = Reshape(out, out.rows * out.cols);
    ConvertToWide(peft.tensors->Bytes(*tensor).data(), tensor->dtype, 0, flat);
    for (std::int64_t i = 0; i < flat.cols; ++i) {
      if (!std::isfinite(RealAt(flat, i))) {
        ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", dir.string(), name, i);
      }
    }
  };
  for (PerLinear<LoraLinear>& layer : adapter.layers_) {
    layer.ForEach([&](LoraLinear& lora) {
      if (lora.rank == 0) return;
      const std::string prefix = "base_model.model." + lora.path;
      read(prefix + ".lora_A.weight", lora.a);
      read(prefix + ".lora_B.weight", lora.b);
    });
  }
  for (const TensorInfo& tensor : peft.tensors->tensors()) {
    if (known.count(tensor.name) == 0) {
      ThrowInvalidInput(
          "{}: tensor '{}' belongs to no linear of this model; is this an adapter of "
          "another model?",
          dir.string(), tensor.name);
    }
  }
  return adapter;
}

}  // namespace qlora
