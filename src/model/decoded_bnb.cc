#include "model/decoded_bnb.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/matrix.h"
#include "io/bnb.h"
#include "io/float_encoding.h"

namespace qlora {
namespace {

class DecodedBnb : public TensorReader {
 public:
  DecodedBnb(std::unique_ptr<TensorReader> stored, std::set<std::string> weights)
      : stored_(std::move(stored)), weights_(std::move(weights)) {
    for (const TensorInfo& tensor : stored_->tensors()) {
      if (weights_.contains(std::string(BnbWeightOf(tensor.name)))) continue;
      numbers_.emplace(tensor.name, tensors_.size());
      tensors_.push_back(tensor);
      if (!weights_.contains(tensor.name)) continue;
      const BnbLayout layout = ReadBnb(*stored_, tensor.name).layout;
      tensors_.back().dtype = layout.dtype;
      tensors_.back().shape = layout.shape;
    }
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view name) const override {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? nullptr : &tensors_[found->second];
  }
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    if (!weights_.contains(tensor.name)) return stored_->Bytes(Stored(tensor));
    std::vector<std::byte>& copy = copies_[tensor.name];
    if (copy.empty()) copy = Decoded(tensor);
    return copy;
  }
  bool IsCopied(const TensorInfo& tensor) const override {
    return weights_.contains(tensor.name) || stored_->IsCopied(Stored(tensor));
  }
  const std::vector<UnreadTensor>& unread() const override { return stored_->unread(); }
  void Release(const TensorInfo& tensor) const override {
    if (!weights_.contains(tensor.name)) return stored_->Release(Stored(tensor));
    copies_.erase(tensor.name);
    ReleaseBnb(*stored_, tensor.name);
  }
  std::string FileOf(const TensorInfo& tensor) const override {
    return stored_->FileOf(Stored(tensor));
  }
  StoredValue StoredAt(const TensorInfo& tensor, std::int64_t element) const override {
    // Two codes lie in a byte.
    const std::int64_t place = weights_.contains(tensor.name) ? element / 2 : element;
    return stored_->StoredAt(Stored(tensor), place);
  }
  bool shows_decoded_4bit() const override { return true; }
  void Trim() const override { stored_->Trim(); }
  const StringMap& metadata() const override { return stored_->metadata(); }

 private:
  const TensorInfo& Stored(const TensorInfo& tensor) const { return *stored_->Find(tensor.name); }

  std::vector<std::byte> Decoded(const TensorInfo& tensor) const {
    const BnbMatrix matrix = ReadBnb(*stored_, tensor.name);
    const QuantizedView& view = matrix.matrix.view();
    std::vector<std::byte> bytes(tensor.bytes());
    const std::int64_t piece = std::max<std::int64_t>(1, kPieceValues / view.cols);
    std::vector<float> values;
    for (std::int64_t row = 0; row < view.rows; row += piece) {
      const std::int64_t rows = std::min(piece, view.rows - row);
      values.resize(static_cast<std::size_t>(rows * view.cols));
      DequantizeRows(view, row, {values.data(), DType::kF32, rows, view.cols, view.cols});
      const std::span<std::byte> out = std::span(bytes).subspan(
          BytesOf(tensor.dtype, row * view.cols), BytesOf(tensor.dtype, rows * view.cols));
      if (EncodeFloats(tensor.dtype, values, out) >= 0) {
        ThrowInvalidInput("{}: tensor '{}' holds a value that does not fit into {}", FileOf(tensor),
                          tensor.name, NameOf(tensor.dtype));
      }
    }
    return bytes;
  }

  std::unique_ptr<TensorReader> stored_;
  std::set<std::string> weights_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
  mutable std::map<std::string, std::vector<std::byte>> copies_;
};

}  // namespace

std::unique_ptr<TensorReader> WithDecodedBnb(std::unique_ptr<TensorReader> stored,
                                             std::set<std::string> weights) {
  if (weights.empty()) return stored;
  return std::make_unique<DecodedBnb>(std::move(stored), std::move(weights));
}

}  // namespace qlora
