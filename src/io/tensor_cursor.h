// The part of every writer that is the same: which bytes of which declared tensor come next.
#ifndef QLORA_IO_TENSOR_CURSOR_H_
#define QLORA_IO_TENSOR_CURSOR_H_

#include "io/tensor_file.h"

namespace qlora {

class TensorCursor {
 public:
  // `where` starts the error messages.
  TensorCursor(std::vector<TensorInfo> tensors, std::string where);

  // In the declared order; shapes change with Shrink.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  struct Piece {
    std::size_t tensor;  // its number
    std::size_t offset;  // of the bytes inside it
    bool last;           // the tensor is complete with this piece
  };
  // Returns the place of the next `bytes` (> 0).
  Piece Take(std::size_t bytes);
  // See TensorWriter::Shrink; returns the number of the tensor.
  std::size_t Shrink(std::int64_t elements);
  // Throws when tensors are missing.
  void CheckComplete() const;

 private:
  void SkipEmpty();

  std::vector<TensorInfo> tensors_;
  std::string where_;
  std::size_t next_ = 0;
  std::size_t taken_ = 0;  // bytes of tensors_[next_]
};

}  // namespace qlora

#endif  // QLORA_IO_TENSOR_CURSOR_H_
