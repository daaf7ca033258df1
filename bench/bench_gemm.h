// `qlora bench nf4-matmul`: products with 4-bit weights beside what this machine allows.
#ifndef QLORA_BENCH_BENCH_GEMM_H_
#define QLORA_BENCH_BENCH_GEMM_H_

#include <cstdint>
#include <vector>

#include "bench/bench_row.h"
#include "qlora/context.h"
#include "qlora/tensor.h"

namespace qlora::bench {

struct BenchGemmOptions {
  struct Shape {
    std::int64_t out_features;  // N
    std::int64_t in_features;   // K
  };
  std::vector<Shape> shapes = {
      {2048, 2048}, {8192, 2048}, {2048, 8192}, {4096, 4096}, {5632, 2048}};
  std::vector<std::int64_t> rows = {1, 4, 16, 128, 512, 2048};  // M
  DType compute = DType::kBF16;
  std::int64_t lora_r = 16;
  int repetitions = 7;
};

// For each shape and number of rows: y = x W^T and dx = dy W with W in NF4 with double
// quantization, and both with an adapter. From 128 rows on they stand beside the dense product of
// oneDNN with pre-packed weights in the same compute type, where this machine has it; fewer rows
// stand beside the lower of the measured arithmetic peak and the measured read bandwidth, 4.127
// bits per weight counted. The rows with an adapter have the time without as their limit. Weights
// of fewer than 128 rows are taken in turn from enough copies to leave the caches.
std::vector<BenchRow> BenchNf4Matmul(Context& context, const BenchGemmOptions& options = {});

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_GEMM_H_
