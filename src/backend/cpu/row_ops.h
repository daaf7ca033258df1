// The ops that work row by row, element by element or column by column, for a range of them: what
// one task does. Definitions of the ops: backend/ops.h. Each section names the file with the code.
#ifndef QLORA_BACKEND_CPU_ROW_OPS_H_
#define QLORA_BACKEND_CPU_ROW_OPS_H_

#include <span>

#include "backend/backend.h"
#include "backend/cpu/workspace.h"

namespace qlora::cpu {

// Ranges are rows [begin, end) of the outputs unless a function says otherwise.

// embedding.cc
void EmbedRows(std::span<const std::int32_t> ids, const ConstMatrixView& table, float scale,
               const MatrixView& y, std::int64_t begin, std::int64_t end);
void AddNoiseRows(RandomKey key, const ConstMatrixView& magnitude, const MatrixView& y,
                  std::int64_t begin, std::int64_t end);

// norm.cc
void RmsNormRows(const ConstMatrixView& x, const ConstMatrixView& weight, float epsilon,
                 const MatrixView& y, const MatrixView& rstd, std::int64_t begin, std::int64_t end);
void RmsNormBackwardRows(const ConstMatrixView& dy, const ConstMatrixView& x,
                         const ConstMatrixView& weight, const ConstMatrixView& rstd,
                         const MatrixView& dx, Store store, std::int64_t begin, std::int64_t end);

// rope.cc
void RopeRows(std::span<const std::int32_t> positions, const RopeTable& table, std::int64_t heads,
              bool inverse, const MatrixView& x, std::int64_t begin, std::int64_t end);

// activation.cc
void GatedRows(Activation activation, const ConstMatrixView& gate, const ConstMatrixView& up,
               const MatrixView& y, std::int64_t begin, std::int64_t end);
void GatedBackwardRows(Activation activation, const ConstMatrixView& dy,
                       const ConstMatrixView& gate, const ConstMatrixView& up,
                       const MatrixView& d_gate, const MatrixView& d_up, std::int64_t begin,
                       std::int64_t end);

// loss.cc
void CrossEntropyRows(std::span<const std::int32_t> targets, float softcap,
                      const ConstMatrixView& row_scale, const MatrixView& logits,
                      const MatrixView& logprob, const MatrixView& hit, std::int64_t begin,
                      std::int64_t end);

// copy_rows.cc. Add, GatherRows and ScatterAddRows: y[to[n]] = [y[to[n]] +] x[from[n]] for n in
// [begin, end); an empty index list stands for n itself.
void CopyRows(const ConstMatrixView& x, std::span<const std::int32_t> from, const MatrixView& y,
              std::span<const std::int32_t> to, bool add, std::int64_t begin, std::int64_t end);

// experts.cc. The first two take all rows at once.
void RouteExperts(const ops::RouteExperts& op);
void RouteExpertsBackward(const ops::RouteExpertsBackward& op);
void ScaleRows(const ConstMatrixView& x, const ConstMatrixView& scale, const MatrixView& y,
               std::int64_t begin, std::int64_t end);
// out(n, h) = sum over columns [h K, (h + 1) K) of x * y, where x and y are (N, heads * K).
void RowDots(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
             std::int64_t begin, std::int64_t end);

// dora.cc. Rows [begin, end) of the weight; values: room for weight.cols() floats.
void RowNormsRange(const WeightView& weight, const LoraView& lora, const MatrixView& norm,
                   const MatrixView& inverse, float* values, std::int64_t begin, std::int64_t end);
void ScaleColumnsRows(const ConstMatrixView& x, const ConstMatrixView& gain,
                      const ConstMatrixView& bias, const MatrixView& y, Store store,
                      std::int64_t begin, std::int64_t end);
// Columns [begin, end).
void ColumnDotsRange(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
                     std::int64_t begin, std::int64_t end);
// The workspace for `values` of RowNormsRange, for a weight with `cols` columns.
inline WorkspaceSize RowWorkspace(std::int64_t cols) {
  Carver worker;
  worker.Matrix(DType::kF32, 1, cols);
  return {0, worker.bytes()};
}

// optimizer.cc. Elements [begin, end) of (1, n) ranges; begin: a multiple of kDynamicBlock.
void UpdateRange(const UpdateArgs& args, const ConstMatrixView& gradient, const MatrixView& param,
                 const Moment& m, const Moment& v, std::int64_t begin, std::int64_t end);
double SumOfSquaresRange(const ConstMatrixView& x, std::int64_t begin, std::int64_t end);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ROW_OPS_H_
