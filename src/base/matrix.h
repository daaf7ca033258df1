// Small operations on views of host memory.
#ifndef QLORA_BASE_MATRIX_H_
#define QLORA_BASE_MATRIX_H_

#include <cstdint>

#include "qlora/tensor.h"

namespace qlora {

// All bytes of a contiguous view become zero, which is 0 in every DType.
void FillZero(MatrixView m);

// Element (0, i) of a kF32, kF64 or kC128 view, the real part of a complex one.
double RealAt(const ConstMatrixView& m, std::int64_t i);

}  // namespace qlora

#endif  // QLORA_BASE_MATRIX_H_
