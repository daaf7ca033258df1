// The dense matrix product that NF4 products are measured against: oneDNN with pre-packed weights,
// loaded at run time where this machine has it, so that nothing depends on it.
#ifndef QLORA_BENCH_BENCH_GEMM_DENSE_H_
#define QLORA_BENCH_BENCH_GEMM_DENSE_H_

#include <cstdint>
#include <memory>

#include "qlora/tensor.h"

namespace qlora::bench {

// y(M, N) = x(M, K) W(K, N), operands of one type.
class DenseGemm {
 public:
  virtual ~DenseGemm() = default;
  virtual void Run() = 0;
};

// True when MakeDenseGemm will return a product.
bool HasDenseGemm();

// Operands hold pseudo-random numbers. dtype: kF32, or kBF16 (results too). Null without oneDNN, or
// where it cannot multiply this type.
std::unique_ptr<DenseGemm> MakeDenseGemm(std::int64_t M, std::int64_t N, std::int64_t K,
                                         DType dtype, int threads);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_GEMM_DENSE_H_
