// The operands of products: views that the library can read, or converted copies of parts.
#ifndef QLORA_BACKEND_CUDA_OPERANDS_H_
#define QLORA_BACKEND_CUDA_OPERANDS_H_

#include <algorithm>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/cuda/linear.h"
#include "base/matrix.h"

namespace qlora::cuda {

// A range of rows or columns.
struct Part {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// fn(part) for parts of [0, count) of at most `most`, which is at least 1.
template <typename Fn>
void ForParts(std::int64_t count, std::int64_t most, const Fn& fn) {
  for (std::int64_t begin = 0; begin < count; begin += most) {
    fn(Part{begin, std::min(most, count - begin)});
  }
}

// fn(part) for parts of about the same size, because a small last part would leave most of the
// device idle: multiples of 128 where `most` allows it, otherwise of kRowStep.
template <typename Fn>
void ForEvenParts(std::int64_t count, std::int64_t most, const Fn& fn) {
  const std::int64_t parts = std::max<std::int64_t>(1, (count + most - 1) / most);
  const std::int64_t even = (count + parts - 1) / parts;
  std::int64_t size = std::max<std::int64_t>(1, even);
  for (const std::int64_t step : {kRowStep, std::int64_t{128}}) {
    const std::int64_t rounded = (even + step - 1) / step * step;
    if (rounded > 0 && rounded <= most) size = rounded;
  }
  ForParts(count, size, fn);
}

template <typename View>
View RowsOf(const View& m, const Part& part) {
  return Rows(m, part.begin, part.count);
}
template <typename View>
View ColumnsOf(const View& m, const Part& part) {
  return Columns(m, part.begin, part.count);
}

// True where b begins `elements` behind the first of a, in rows of the same type and stride.
inline bool IsBehind(const ConstMatrixView& a, std::int64_t elements, const ConstMatrixView& b) {
  return b.data == static_cast<const std::byte*>(a.data) + BytesOf(a.dtype, elements) &&
         b.dtype == a.dtype && b.stride == a.stride;
}
// Matrices that are beside each other in the rows of one matrix, as this matrix; otherwise an empty
// view.
template <typename View>
View Beside(const std::vector<View>& parts) {
  View all = parts.front();
  for (auto part = parts.begin() + 1; part != parts.end(); ++part) {
    if (!IsBehind(all, all.cols, *part)) return {};
    all.cols += part->cols;
  }
  return all.cols <= all.stride ? all : View{};
}
// Likewise matrices below each other.
inline ConstMatrixView Below(const std::vector<ConstMatrixView>& parts) {
  ConstMatrixView all = parts.front();
  for (auto part = parts.begin() + 1; part != parts.end(); ++part) {
    if (!IsBehind(all, all.rows * all.stride, *part)) return {};
    all.rows += part->rows;
  }
  return all;
}

inline bool CanMultiply(const Machine& machine, const ConstMatrixView& m) {
  return m.dtype == machine.compute() && IsBlasOperand(m);
}

// Rows of `width` elements that fit into a piece; at least 1, where PlaceIn then reports the
// missing room.
inline std::int64_t RowsThatFit(const MatrixView& piece, std::int64_t width) {
  return std::max<std::int64_t>(1, piece.cols / PaddedCols(width));
}
// Columns of `rows` rows that fit into a piece: a multiple of their step.
inline std::int64_t ColsThatFit(const MatrixView& piece, std::int64_t rows) {
  const std::int64_t cols = piece.cols / std::max<std::int64_t>(1, rows);
  return std::max(kRowStep, cols / RowStepOf(cols) * RowStepOf(cols));
}

// m itself, or its copy in `piece`.
inline ConstMatrixView Operand(const Machine& machine, const ConstMatrixView& m,
                               const MatrixView& piece, std::int64_t used = 0) {
  if (CanMultiply(machine, m)) return m;
  const MatrixView copy = PlaceIn(piece, m.rows, m.cols, used);
  DropRows(machine.stream, m, {}, copy);
  return copy;
}

// Rows and columns of a weight, in place where the library can read them, otherwise decoded.
inline ConstMatrixView WeightOperand(const Machine& machine, const WeightView& weight,
                                     const Part& rows, const Part& cols, std::int64_t used = 0) {
  if (weight.form() == WeightForm::kDense) {
    const ConstMatrixView part = ColumnsOf(RowsOf(weight.dense, rows), cols);
    if (CanMultiply(machine, part)) return part;
  }
  const MatrixView copy = PlaceIn(machine.pieces().weight, rows.count, cols.count, used);
  DecodeWeight(machine.stream, {weight, rows.begin, cols.begin, copy});
  return copy;
}

// The input of an adapter: rows of x with dropout, as a product reads them.
inline ConstMatrixView AdapterInput(const Machine& machine, const ConstMatrixView& x,
                                    const LoraView& lora, const Part& rows) {
  const ConstMatrixView part = RowsOf(x, rows);
  if (lora.dropout == 0) return Operand(machine, part, machine.pieces().inputs);
  const MatrixView dropped = PlaceIn(machine.pieces().inputs, part.rows, part.cols);
  DropRows(machine.stream, part,
           {.dropout = lora.dropout,
            .key = lora.dropout_key,
            .in_features = x.cols,
            .first_row = rows.begin},
           dropped);
  return dropped;
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_OPERANDS_H_
