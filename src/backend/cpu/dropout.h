// LoRA dropout. An element is dropped or not by its index and the key of the adapter alone, so
// that any part of a matrix can be dropped alone, in forward and backward passes.
#ifndef QLORA_BACKEND_CPU_DROPOUT_H_
#define QLORA_BACKEND_CPU_DROPOUT_H_

#include "backend/backend.h"

namespace qlora::cpu {

// out(n, i) = drop(x)(row + n, col + i), for the rows and columns of out, float32. x(N, I) is the
// input of the whole op.
void DropInputs(const LoraView& lora, const ConstMatrixView& x, std::int64_t row, std::int64_t col,
                const MatrixView& out);
// out(n, i) *= the factor of element (row + n, col + i) of a matrix of `cols` columns: 0 or
// 1 / (1 - dropout).
void DropOutputs(const LoraView& lora, std::int64_t cols, std::int64_t row, std::int64_t col,
                 const MatrixView& out);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_DROPOUT_H_
