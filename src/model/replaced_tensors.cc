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

// Linears have their biases, other rows no more than themselves.
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

class Replaced : public TensorReader {
 public:
  Replaced(std::unique_ptr<TensorReader> checkpoint,
           std::shared_ptr<const ReplacedTensors> replaced, const DecoderConfig& config)
      : checkpoint_(std::move(checkpoint)),
        replaced_(std::move(replaced)),
        prefix_(DecoderPrefix(*checkpoint_)),
        // What is read from a GGUF file has w in the place of w - 1.
        shift_(FamilyOf(config.model_type, "").one_plus_norm && !config.one_plus_norm ? 1.0f : 0) {
    for (const TensorInfo& tensor : checkpoint_->tensors()) {
      numbers_.emplace(tensor.name, tensors_.size());
      tensors_.push_back(tensor);
      const ReplacedTensor* by = Find(tensor);
      if (by == nullptr) continue;
      if (tensor.elements() != static_cast<std::int64_t>(by->values.size()) ||
          !IsFloat(tensor.dtype)) {
        ThrowInvalidInput(
            "the adapter brings '{}' of shape [{}], and this model has it as {} of shape [{}]",
            tensor.name, fmt::join(by->shape, ", "), NameOf(tensor.dtype),
            fmt::join(tensor.shape, ", "));
      }
      tensors_.back().dtype = DType::kF32;
    }
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view name) const override {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? nullptr : &tensors_[found->second];
  }
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    const ReplacedTensor* by = Find(tensor);
    if (by == nullptr) return checkpoint_->Bytes(Stored(tensor));
    std::vector<float>& values = copies_[tensor.name];
    if (values.empty()) values = Values(Stored(tensor), *by);
    return std::as_bytes(std::span(values));
  }
  bool IsCopied(const TensorInfo& tensor) const override {
    return Find(tensor) != nullptr || checkpoint_->IsCopied(Stored(tensor));
  }
  const std::vector<UnreadTensor>& unread() const override { return checkpoint_->unread(); }
  void Release(const TensorInfo& tensor) const override {
    copies_.erase(tensor.name);
    checkpoint_->Release(Stored(tensor));
  }
  bool shows_decoded_4bit() const override { return checkpoint_->shows_decoded_4bit(); }
  void Trim() const override { checkpoint_->Trim(); }
  std::string FileOf(const TensorInfo& tensor) const override {
    return checkpoint_->FileOf(Stored(tensor));
  }
  StoredValue StoredAt(const TensorInfo& tensor, std::int64_t element) const override {
    return checkpoint_->StoredAt(Stored(tensor), element);
  }
  const StringMap& metadata() const override { return checkpoint_->metadata(); }

 private:
  const TensorInfo& Stored(const TensorInfo& tensor) const {
    return *checkpoint_->Find(tensor.name);
  }

  // Null for tensors that are the checkpoint's.
  const ReplacedTensor* Find(const TensorInfo& tensor) const {
    if (!tensor.name.starts_with(prefix_)) return nullptr;
    const auto found = replaced_->find(std::string(kDecoder) + tensor.name.substr(prefix_.size()));
    return found == replaced_->end() ? nullptr : &found->second;
  }

  std::vector<float> Values(const TensorInfo& stored, const ReplacedTensor& by) const {
    std::vector<float> values = by.values;
    if (by.is_change) {
      std::vector<float> base(values.size());
      DecodeFloats(stored.dtype, checkpoint_->Bytes(stored), base);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += base[i];
    } else if (shift_ != 0 && stored.name.ends_with("norm.weight")) {
      for (float& value : values) value += shift_;
    }
    return values;
  }

  std::unique_ptr<TensorReader> checkpoint_;
  std::shared_ptr<const ReplacedTensors> replaced_;
  std::string prefix_;
  float shift_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
  mutable std::map<std::string, std::vector<float>> copies_;
};

}  // namespace

bool IsReplaceable(const DecoderConfig& config, const std::string& name) {
  if (!name.starts_with(kDecoder)) return false;
  std::string rest = name.substr(kDecoder.size());
  for (const DecoderTensor& row : DecoderTensors(config)) {
    if (row.vector != nullptr && rest == row.name) return true;
  }
  const std::optional<DecoderPlace> place = PlaceInDecoder(name);
  if (!place || place->layer >= config.num_hidden_layers) return false;
  const std::vector<LayerTensor> rows = LayerTensors(config, place->layer);
  return std::ranges::any_of(
      rows, [&](const LayerTensor& row) { return Brings(config, row, place->rest); });
}

std::unique_ptr<TensorReader> WithReplaced(std::unique_ptr<TensorReader> checkpoint,
                                           std::shared_ptr<const ReplacedTensors> replaced,
                                           const DecoderConfig& config) {
  if (replaced == nullptr || replaced->empty()) return checkpoint;
  return std::make_unique<Replaced>(std::move(checkpoint), std::move(replaced), config);
}

}  // namespace qlora
