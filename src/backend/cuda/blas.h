// The matrix product of a GPU's library, in row-major terms. device/blas.cc has cuBLASLt,
// tests/gpu_host/host_blas.cc plain loops that refuse the operands that the library refuses.
#ifndef QLORA_BACKEND_CUDA_BLAS_H_
#define QLORA_BACKEND_CUDA_BLAS_H_

#include <cstdint>

#include "backend/cuda/stream.h"
#include "qlora/tensor.h"

namespace qlora::cuda {

// c = alpha op(a) op(b) + beta base, with op the transposition where it is asked for. Sums are
// float32, and a value is rounded once, when it is stored. base is not read where beta is 0. Types:
// a and b are both bfloat16, and c bfloat16 or float32; or all are float32, and so are the
// products. a and b are IsBlasOperand.
struct Gemm {
  ConstMatrixView a;  // (M, K), or (K, M) with transpose_a
  ConstMatrixView b;  // (K, N), or (N, K) with transpose_b
  bool transpose_a = false;
  bool transpose_b = false;
  float alpha = 1;
  float beta = 0;
  MatrixView c;               // (M, N)
  ConstMatrixView base = {};  // (M, N) of the type of c; empty: c
  // The algorithm depends on the shape of the product alone, not on a measurement.
  bool deterministic = false;

  ConstMatrixView added() const { return base.empty() ? c : base; }
};

// Rows begin at multiples of 16 bytes, which the fast kernels of the library need.
inline bool IsBlasOperand(const ConstMatrixView& m) {
  return reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && BytesOf(m.dtype, m.stride) % 16 == 0;
}

class Blas {
 public:
  virtual ~Blas() = default;
  // Queues the product. Nothing is done where M or N is 0; K is not 0.
  // Errors: Runtime for operands that the library refuses.
  virtual void Run(Stream stream, const Gemm& gemm) = 0;
};

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_BLAS_H_
