// A file's tensors under other names and in other pieces: joined, cut, scaled, or with rows in
// another order. What lies in one piece of the file is read in place; the rest is copied when it is
// read, one tensor at a time.
#ifndef QLORA_MODEL_TENSOR_VIEWS_H_
#define QLORA_MODEL_TENSOR_VIEWS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/tensor_file.h"

namespace qlora {

// Elements [first, first + count) of a stored tensor; of blocks, whole rows.
struct TensorPiece {
  const TensorInfo* source = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
  // Where not empty: row i of the view is row `rows[i]` of the piece.
  std::vector<std::int64_t> rows = {};
};

// A tensor as the layers ask for it: its pieces one after the other, of its type, or of any types
// where that is F32; without pieces it is 0. transposed: the single piece is a matrix whose columns
// are the rows of this one.
struct TensorView {
  TensorInfo info;
  std::vector<TensorPiece> pieces;
  bool transposed = false;
  // Of the columns of a transposed piece, or with a step of the rows of a single piece, every
  // line_step-th from first_line on is a row of this matrix.
  std::int64_t first_line = 0;
  std::int64_t line_step = 1;
  // Where not empty: column i is column `columns[i]` of the single piece, and the view is F32.
  std::vector<std::int64_t> columns = {};
  // Values are multiplied by it; if it is not 1, they are F32 in the view.
  float factor = 1;

  void SetFactor(float value);
};

class TensorViews : public ForwardingReader {
 public:
  // The pieces point into `stored`. Errors: InvalidInput for two views of one name.
  TensorViews(std::unique_ptr<TensorReader> stored, std::vector<TensorView> views,
              std::vector<UnreadTensor> unread);

  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override;
  bool IsCopied(const TensorInfo& tensor) const override;
  void Release(const TensorInfo& tensor) const override;
  std::string FileOf(const TensorInfo& tensor) const override;
  StoredValue StoredAt(const TensorInfo& tensor, std::int64_t element) const override;

 private:
  const TensorView& ViewOf(const TensorInfo& tensor) const;
  std::span<const std::byte> StoredBytes(const TensorPiece& piece) const;
  std::vector<std::byte> Copied(const TensorView& view) const;

  std::vector<TensorView> views_;  // of tensors()
  mutable std::map<std::string, std::vector<std::byte>> copies_;
};

}  // namespace qlora

#endif  // QLORA_MODEL_TENSOR_VIEWS_H_
