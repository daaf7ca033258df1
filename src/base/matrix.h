// Small operations on views of host memory.
#ifndef QLORA_BASE_MATRIX_H_
#define QLORA_BASE_MATRIX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/random.h"
#include "qlora/tensor.h"

namespace qlora {

// True for F32, F16 or BF16: the types of dense weights.
bool IsFloat(DType dtype);

// Returns torch's kaiming_uniform_(a = sqrt(5)) for the A (R, I) of an adapter, row by row: uniform
// in +-1/sqrt(I).
std::vector<float> KaimingUniform(RandomKey key, std::int64_t rows, std::int64_t cols);

// Fills a kF32 or kBF16 matrix in host memory with values in [-1, 1), for measurements of speed:
// pseudo-random, and cheaper than those of random.h.
void FillUniform(const MatrixView& m, std::uint64_t seed);

// Returns the values of a matrix (rows, cols) in the order of (cols, rows).
std::vector<float> Transposed(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t cols);

// Columns [begin, begin + count) of a view, which may be one without data.
MatrixView Columns(const MatrixView& m, std::int64_t begin, std::int64_t count);
ConstMatrixView Columns(const ConstMatrixView& m, std::int64_t begin, std::int64_t count);

// Transfers of real values to and from contiguous views of a wide type (kF32, kF64 or kC128), whose
// imaginary parts become and are taken for 0.
void UploadWide(Memory& memory, std::span<const float> values, const MatrixView& m);
// The same from `data` in host memory: m.rows * m.cols values of `dtype` (F32, F16, BF16), not
// necessarily aligned, plus `shift`.
void UploadWide(Memory& memory, const void* data, DType dtype, double shift, const MatrixView& m);
std::vector<double> DownloadReal(Memory& memory, const ConstMatrixView& m);

// Returns element (0, i) of a kF32, kF64 or kC128 view, the real part of a complex one.
double RealAt(const ConstMatrixView& m, std::int64_t i);

// out (1, n; kF32, kF64 or kC128) = (values + shift) * factor; `data` holds n values of `dtype`
// (F32, F16, BF16), not necessarily aligned.
void ConvertToWide(const void* data, DType dtype, double shift, MatrixView out, double factor = 1);

}  // namespace qlora

#endif  // QLORA_BASE_MATRIX_H_
