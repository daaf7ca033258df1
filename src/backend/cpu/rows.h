// Ops on rows and elements: normalisation, rotation, activations, loss, optimizer.
#ifndef QLORA_BACKEND_CPU_ROWS_H_
#define QLORA_BACKEND_CPU_ROWS_H_

#include <span>

#include "backend/backend.h"

namespace qlora::cpu {

// As the ops of the same name (backend.h), for rows [begin, end) of the operands.
void EmbedRows(std::span<const std::int32_t> ids, const ConstMatrixView& table, float scale,
               const MatrixView& y, std::int64_t begin, std::int64_t end);
void RmsNormRows(const ConstMatrixView& x, const ConstMatrixView& weight, float epsilon,
                 const MatrixView& y, const MatrixView& rstd, std::int64_t begin, std::int64_t end);
void RmsNormBackwardRows(const ConstMatrixView& dy, const ConstMatrixView& x,
                         const ConstMatrixView& weight, const ConstMatrixView& rstd,
                         const MatrixView& dx, Store store, std::int64_t begin, std::int64_t end);
void RopeRows(std::span<const std::int32_t> positions, const RopeTable& table, std::int64_t heads,
              bool inverse, const MatrixView& x, std::int64_t begin, std::int64_t end);
void GatedRows(Activation activation, const ConstMatrixView& gate, const ConstMatrixView& up,
               const MatrixView& y, std::int64_t begin, std::int64_t end);
void GatedBackwardRows(Activation activation, const ConstMatrixView& dy,
                       const ConstMatrixView& gate, const ConstMatrixView& up,
                       const MatrixView& d_gate, const MatrixView& d_up, std::int64_t begin,
                       std::int64_t end);
void CrossEntropyRows(std::span<const std::int32_t> targets, float softcap,
                      const ConstMatrixView& row_scale, const MatrixView& logits,
                      const MatrixView& logprob, const MatrixView& hit, std::int64_t begin,
                      std::int64_t end);
// y[to[n]] = [y[to[n]] +] x[from[n]]; an empty index list means n itself.
void CopyRows(const ConstMatrixView& x, std::span<const std::int32_t> from, const MatrixView& y,
              std::span<const std::int32_t> to, bool add, std::int64_t begin, std::int64_t end);
void ScaleRows(const ConstMatrixView& x, const ConstMatrixView& scale, const MatrixView& y,
               std::int64_t begin, std::int64_t end);

// Elements [begin, end) of (1, n) ranges; begin is a multiple of kDynamicBlock.
void UpdateRange(const UpdateArgs& args, const ConstMatrixView& gradient, const MatrixView& param,
                 const Moment& m, const Moment& v, std::int64_t begin, std::int64_t end);
double SumOfSquaresRange(const ConstMatrixView& x, std::int64_t begin, std::int64_t end);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ROWS_H_
