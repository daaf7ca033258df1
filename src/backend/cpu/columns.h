// Ops on the rows of weights and the columns of activations, which DoRA needs.
#ifndef QLORA_BACKEND_CPU_COLUMNS_H_
#define QLORA_BACKEND_CPU_COLUMNS_H_

#include "backend/backend.h"
#include "backend/cpu/workspace.h"

namespace qlora::cpu {

// What RowNorms carves for a weight with `cols` columns.
inline WorkspaceSize RowWorkspace(std::int64_t cols) {
  Carver worker;
  worker.Matrix(DType::kF32, 1, cols);
  return {0, worker.bytes()};
}

// As the ops of the same name (backend.h). Rows [begin, end) of the weight; values: room for
// cols() floats.
void RowNormsRange(const WeightView& weight, const LoraView& lora, const MatrixView& norm,
                   const MatrixView& inverse, float* values, std::int64_t begin, std::int64_t end);
// Rows [begin, end).
void ScaleColumnsRows(const ConstMatrixView& x, const ConstMatrixView& gain,
                      const ConstMatrixView& bias, const MatrixView& y, Store store,
                      std::int64_t begin, std::int64_t end);
// Columns [begin, end).
void ColumnDotsRange(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
                     std::int64_t begin, std::int64_t end);
// Rows [begin, end).
void AddNoiseRows(RandomKey key, const ConstMatrixView& magnitude, const MatrixView& y,
                  std::int64_t begin, std::int64_t end);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_COLUMNS_H_
