// The ops that work row by row, element by element or column by column: one function for the range
// of a task. Definitions of the ops: backend/ops.h. Each section names the file with the code.
#ifndef QLORA_BACKEND_CPU_ROW_OPS_H_
#define QLORA_BACKEND_CPU_ROW_OPS_H_

#include "backend/backend.h"
#include "backend/cpu/workspace.h"

namespace qlora::cpu {

// Rows [begin, end) of the outputs, unless a function says otherwise.
struct Range {
  std::int64_t begin;
  std::int64_t end;
};

// copy_rows.cc: y(to[n]) = [y(to[n]) +] scale x(from[n]) for each n of a range. An empty list of
// indices means n itself.
struct RowCopy {
  ConstMatrixView x;
  IndexView from = {};
  MatrixView y;
  IndexView to = {};
  float scale = 1;
  ConstMatrixView scales = {};  // (1, N) or empty: scale is scales[n] instead
  bool add = false;
};
void CopyRows(const RowCopy& copy, Range rows);

// embedding.cc. EmbedDecodedRows reads a table that is not dense. EmbedBackward takes columns,
// because rows may have the same id.
void EmbedDecodedRows(const ops::Embed& op, Range rows);
void EmbedBackwardColumns(const ops::EmbedBackward& op, Range columns);
void AddNoiseRows(const ops::AddNoise& op, Range rows);

// norm.cc
void RmsNormRows(const ops::RmsNorm& op, Range rows);
void RmsNormBackwardRows(const ops::RmsNormBackward& op, Range rows);

// rope.cc
void RopeRows(const ops::Rope& op, Range rows);

// activation.cc
void GatedRows(const ops::GatedActivation& op, Range rows);
void GatedBackwardRows(const ops::GatedActivationBackward& op, Range rows);

// attention/attention_sinks.cc
void AttentionSinksRows(const ops::AttentionSinks& op, Range rows);

// loss.cc
void CrossEntropyRows(const ops::CrossEntropy& op, Range rows);
void KlDivergenceRows(const ops::KlDivergence& op, Range rows);

// experts.cc. The first two take all rows at once.
void RouteExperts(const ops::RouteExperts& op);
void RouteExpertsBackward(const ops::RouteExpertsBackward& op);
// out(n, h) = sum over columns [h K, (h + 1) K) of x * y, where x and y are (N, heads * K).
void RowDots(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out, Range rows);
void GateRows(const ops::GateRows& op, Range rows);
void GateRowsBackward(const ops::GateRowsBackward& op, Range rows);

// dora.cc. Rows of the weight; values: room for weight.cols() floats.
void RowNormsRange(const ops::RowNorms& op, float* values, Range rows);
void ScaleColumnsRows(const ops::ScaleColumns& op, Range rows);
void ColumnDotsColumns(const ops::ColumnDots& op, Range columns);
void ColumnSquaresColumns(const ops::ColumnSquares& op, Range columns);
// The workspace for `values` of RowNormsRange, for a weight with `cols` columns.
inline WorkspaceSize RowWorkspace(std::int64_t cols) {
  Carver worker;
  worker.Matrix(DType::kF32, 1, cols);
  return {0, worker.bytes()};
}

// optimizer.cc. Elements of (1, n) ranges, from a multiple of kDynamicBlock on.
void UpdateRange(const ops::Update& op, Range elements);
double SumOfSquaresRange(const ConstMatrixView& x, Range elements);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ROW_OPS_H_
