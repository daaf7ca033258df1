#include "io/tensor_cursor.h"

#include <utility>

#include "base/check.h"

namespace qlora {

TensorCursor::TensorCursor(std::vector<TensorInfo> tensors, std::string where)
    : tensors_(std::move(tensors)), where_(std::move(where)) {
  SkipEmpty();
}

TensorCursor::Piece TensorCursor::Take(std::size_t bytes) {
  if (next_ == tensors_.size()) {
    ThrowRuntime("{}: {} more bytes came after the last tensor", where_, bytes);
  }
  const TensorInfo& tensor = tensors_[next_];
  const std::size_t total = tensor.bytes();
  // A piece never spans two tensors: in the file they may be far apart.
  if (bytes > total - taken_) {
    ThrowRuntime("{}: tensor '{}' has {} bytes, but {} came", where_, tensor.name, total,
                 taken_ + bytes);
  }
  // `last` lets a writer pad a tensor without looking for its end.
  const Piece piece = {next_, taken_, taken_ + bytes == total};
  taken_ += bytes;
  if (piece.last) {
    ++next_;
    taken_ = 0;
    // Otherwise the cursor would wait for a tensor without bytes: no Take() ever completes it.
    SkipEmpty();
  }
  return piece;
}

std::size_t TensorCursor::Shrink(std::int64_t elements) {
  // Only before its first byte: afterwards bytes would be beyond the new end.
  if (next_ == tensors_.size() || taken_ != 0 || !tensors_[next_].upper_bound || elements < 0 ||
      elements > tensors_[next_].elements()) {
    ThrowRuntime("{}: tensor '{}' cannot be shrunk to {} elements", where_,
                 next_ == tensors_.size() ? "" : tensors_[next_].name, elements);
  }
  const std::size_t number = next_;
  tensors_[number].shape = {elements};
  tensors_[number].upper_bound = false;
  SkipEmpty();
  return number;
}

void TensorCursor::CheckComplete() const {
  if (next_ == tensors_.size()) return;
  ThrowRuntime("{}: tensor '{}' is incomplete: {} of {} bytes came", where_, tensors_[next_].name,
               taken_, tensors_[next_].bytes());
}

void TensorCursor::SkipEmpty() {
  // A tensor with an upper bound of 0 still waits for Shrink, which settles its shape.
  while (next_ < tensors_.size() && !tensors_[next_].upper_bound && tensors_[next_].bytes() == 0) {
    ++next_;
  }
}

}  // namespace qlora
