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

class DecodedBnb : public ForwardingReader {
 public:
  DecodedBnb(std::unique_ptr<TensorReader> stored, std::set<std::string> weights)
      : ForwardingReader(std::move(stored)), weights_(std::move(weights)) {
    for (const TensorInfo& tensor : this->stored().tensors()) {
      if (weights_.contains(std::string(BnbWeightOf(tensor.name)))) continue;
      TensorInfo& shown = Add(tensor);
      if (!weights_.contains(tensor.name)) continue;
      const BnbLayout layout = ReadBnb(this->stored(), tensor.name).layout;
      shown.dtype = layout.dtype;
      shown.shape = layout.shape;
    }
  }

  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    if (!weights_.contains(tensor.name)) return ForwardingReader::Bytes(tensor);
    std::vector<std::byte>& copy = copies_[tensor.name];
    if (copy.empty()) copy = Decoded(tensor);
    return copy;
  }
  bool IsCopied(const TensorInfo& tensor) const override {
    return weights_.contains(tensor.name) || ForwardingReader::IsCopied(tensor);
  }
  void Release(const TensorInfo& tensor) const override {
    if (!weights_.contains(tensor.name)) return ForwardingReader::Release(tensor);
    copies_.erase(tensor.name);
    ReleaseBnb(stored(), tensor.name);
  }
  StoredValue StoredAt(const TensorInfo& tensor, std::int64_t element) const override {
    // Two codes lie in a byte.
    const std::int64_t place = weights_.contains(tensor.name) ? element / 2 : element;
    return ForwardingReader::StoredAt(tensor, place);
  }
  bool shows_decoded_4bit() const override { return true; }

 private:
  // Some rows at a time, so that no second copy of the weight is in memory.
  std::vector<std::byte> Decoded(const TensorInfo& tensor) const {
    const BnbMatrix matrix = ReadBnb(stored(), tensor.name);
    const QuantizedView& view = matrix.matrix.view();
    const std::int64_t piece = std::max<std::int64_t>(1, kPieceValues / view.cols);
    std::vector<std::byte> bytes(tensor.bytes());
    std::vector<float> values;
    for (std::int64_t row = 0; row < view.rows; row += piece) {
      const std::int64_t rows = std::min(piece, view.rows - row);
      values.resize(rows * view.cols);
      DequantizeRows(view, row, {values.data(), DType::kF32, rows, view.cols, view.cols});
      const std::span<std::byte> part = std::span(bytes).subspan(
          BytesOf(tensor.dtype, row * view.cols), BytesOf(tensor.dtype, rows * view.cols));
      if (EncodeFloats(tensor.dtype, values, part) >= 0) {
        ThrowInvalidInput("{}: tensor '{}' holds a value that does not fit into {}", FileOf(tensor),
                          tensor.name, NameOf(tensor.dtype));
      }
    }
    return bytes;
  }

  std::set<std::string> weights_;
  mutable std::map<std::string, std::vector<std::byte>> copies_;
};

}  // namespace

std::unique_ptr<TensorReader> WithDecodedBnb(std::unique_ptr<TensorReader> stored,
                                             std::set<std::string> weights) {
  if (weights.empty()) return stored;
  return std::make_unique<DecodedBnb>(std::move(stored), std::move(weights));
}

}  // namespace qlora
