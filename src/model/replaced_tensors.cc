#include "model/replaced_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "config/families.h"
#include "io/checkpoint_names.h"
#include "io/float_encoding.h"
#include "model/checkpoint.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

constexpr std::string_view kDecoder = "model.";

// The tensor of a row that an adapter may bring, of this name: linears have their biases, other
// rows no more than themselves.
bool Brings(const DecoderConfig& config, const LayerTensor& row, const std::string& rest) {
  switch (row.kind) {
    case TensorKind::kNorm:
    case TensorKind::kTable:
    case TensorKind::kScalar:
      return rest == row.name;
    case TensorKind::kVector:
      // The heads of a GGUF file are in another order.
      return rest == row.name && (row.head_rows == 0 || !config.delta_rule.tiled);
    case TensorKind::kLinear:
      return row.has_bias && row.experts == 0 && row.head_rows == 0 &&
             rest == StemOf(row.name) + ".bias";
    default:
      return false;
  }
}

// What a tensor is that an adapter may bring: a norm, a router, a bias or another vector. Nothing
// for others.
std::optional<TensorKind> KindOf(const DecoderConfig& config, const std::string& name) {
  if (!name.starts_with(kDecoder)) return std::nullopt;
  const std::string rest = name.substr(kDecoder.size());
  for (const DecoderTensor& row : DecoderTensors(config)) {
    if (row.vector != nullptr && rest == row.name) return row.kind;
  }
  const std::optional<DecoderPlace> place = PlaceInDecoder(name);
  if (!place || place->layer >= config.num_hidden_layers) return std::nullopt;
  for (const LayerTensor& row : LayerTensors(config, place->layer)) {
    if (Brings(config, row, place->rest)) return row.kind;
  }
  return std::nullopt;
}

// Without sizes of 1, which change no order of the values.
std::vector<std::int64_t> Squeezed(std::vector<std::int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

class Replaced : public ForwardingReader {
 public:
  Replaced(std::unique_ptr<TensorReader> checkpoint,
           std::shared_ptr<const ReplacedTensors> replaced, const DecoderConfig& config)
      : ForwardingReader(std::move(checkpoint)),
        replaced_(std::move(replaced)),
        prefix_(DecoderPrefix(stored())),
        config_(config) {
    for (const TensorInfo& tensor : stored().tensors()) {
      TensorInfo& shown = Add(tensor);
      const ReplacedTensor* by = By(tensor);
      if (by == nullptr) continue;
      if (Squeezed(tensor.shape) != Squeezed(by->shape) || !IsFloat(tensor.dtype)) {
        ThrowInvalidInput(
            "the adapter brings '{}' of shape [{}], and this model has it as {} of shape [{}]",
            tensor.name, fmt::join(by->shape, ", "), NameOf(tensor.dtype),
            fmt::join(tensor.shape, ", "));
      }
      shown.dtype = DType::kF32;
    }
    for (const auto& [name, tensor] : *replaced_) {
      const std::string own = prefix_ + name.substr(kDecoder.size());
      if (Find(own) != nullptr) continue;
      ThrowInvalidInput(
          "the adapter brings '{}' of shape [{}], and the checkpoint of this model has no such "
          "tensor; it is an adapter of another model",
          own, fmt::join(tensor.shape, ", "));
    }
  }

  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    const ReplacedTensor* by = By(tensor);
    if (by == nullptr) return ForwardingReader::Bytes(tensor);
    std::vector<float>& values = copies_[tensor.name];
    if (values.empty()) values = Values(Stored(tensor), *by);
    return std::as_bytes(std::span(values));
  }
  bool IsCopied(const TensorInfo& tensor) const override {
    return By(tensor) != nullptr || ForwardingReader::IsCopied(tensor);
  }
  void Release(const TensorInfo& tensor) const override {
    copies_.erase(tensor.name);
    ForwardingReader::Release(tensor);
  }

 private:
  // Null for tensors that are the checkpoint's.
  const ReplacedTensor* By(const TensorInfo& tensor) const {
    if (!tensor.name.starts_with(prefix_)) return nullptr;
    const auto found = replaced_->find(std::string(kDecoder) + tensor.name.substr(prefix_.size()));
    return found == replaced_->end() ? nullptr : &found->second;
  }

  std::vector<float> Values(const TensorInfo& tensor, const ReplacedTensor& by) const {
    std::vector<float> values = by.values;
    if (by.is_change) {
      std::vector<float> base(values.size());
      DecodeFloats(tensor.dtype, stored().Bytes(tensor), base);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += base[i];
    } else if (IsShifted(tensor)) {
      for (float& value : values) value += 1;
    }
    return values;
  }

  // What is read from a GGUF file has w in the place of the w - 1 of norms.
  bool IsShifted(const TensorInfo& tensor) const {
    if (config_.one_plus_norm || !FamilyOf(config_.model_type, "").one_plus_norm) return false;
    const std::string name = std::string(kDecoder) + tensor.name.substr(prefix_.size());
    return KindOf(config_, name) == TensorKind::kNorm;
  }

  std::shared_ptr<const ReplacedTensors> replaced_;
  std::string prefix_;
  DecoderConfig config_;
  mutable std::map<std::string, std::vector<float>> copies_;
};

}  // namespace

bool IsReplaceable(const DecoderConfig& config, const std::string& name) {
  return KindOf(config, name).has_value();
}

std::unique_ptr<TensorReader> WithReplaced(std::unique_ptr<TensorReader> checkpoint,
                                           std::shared_ptr<const ReplacedTensors> replaced,
                                           const DecoderConfig& config) {
  if (replaced == nullptr || replaced->empty()) return checkpoint;
  return std::make_unique<Replaced>(std::move(checkpoint), std::move(replaced), config);
}

}  // namespace qlora
