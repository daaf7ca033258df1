// Causal attention in tiles; no matrix of queries times keys is ever stored.
#ifndef QLORA_BACKEND_CPU_ATTENTION_H_
#define QLORA_BACKEND_CPU_ATTENTION_H_

#include <span>

#include "backend/backend.h"
#include "backend/cpu/machine.h"

namespace qlora::cpu {

WorkspaceSize AttentionForwardWorkspace(const Kernels& kernels, const AttentionShape& shape);
// length: tokens of the longest sequence; 0 without a backward pass.
WorkspaceSize AttentionBackwardWorkspace(const Kernels& kernels, const AttentionShape& shape,
                                         std::int64_t rows, std::int64_t length);

void AttentionForward(const Machine& machine, const AttentionShape& shape,
                      std::span<const AttentionSpan> spans, const ConstMatrixView& q,
                      const ConstMatrixView& k, const ConstMatrixView& v, const MatrixView& o,
                      const MatrixView& lse);
void AttentionBackward(const Machine& machine, const AttentionShape& shape,
                       std::span<const AttentionSpan> spans, const ConstMatrixView& d_o,
                       const ConstMatrixView& q, const ConstMatrixView& k, const ConstMatrixView& v,
                       const ConstMatrixView& o, const ConstMatrixView& lse, const MatrixView& dq,
                       const MatrixView& dk, const MatrixView& dv);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ATTENTION_H_
