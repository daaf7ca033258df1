// `qlora-bench nf4-matmul`: products with 4-bit weights, compared with the limits of this machine.
#ifndef QLORA_BENCH_BENCH_GEMM_H_
#define QLORA_BENCH_BENCH_GEMM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_row.h"
#include "qlora/context.h"
#include "qlora/options.h"

namespace qlora::bench {

struct BenchGemmOptions {
  // Weights (out_features, in_features), written "NxK".
  std::vector<std::string> shapes = {"2048x2048", "8192x2048", "2048x8192", "4096x4096",
                                     "5632x2048"};
  std::vector<std::string> rows = {"1", "4", "16", "128", "512"};  // M
  std::string ggml;  // a folder with its shared libraries, or ""
  std::int64_t repetitions = 5;
  // Declared by ModelBenchOptions.
  std::vector<std::string> weight_formats = {"nf4"};
  std::string compute_dtype = "auto";
  std::int64_t lora_r = 16;

  void Declare(OptionTable& table);
};

// For each format, shape and number of rows: y = x W^T and, from 16 rows on, dx = dy W with W in
// NF4 with double quantization or in blocks of ggml, and both with an adapter. From 128 rows on
// they are compared with the dense product of oneDNN with pre-packed weights, where this machine
// has it, in the type that ours multiply; fewer rows are compared with the lower of the measured
// arithmetic peak and the measured read bandwidth, for NF4 4.127 bits per weight counted. The rows
// with an adapter have the time without as their limit. Weights of fewer than 128 rows are taken in
// turn from enough copies to leave the caches. With options.ggml, its product with the same blocks
// follows y = x W^T, measured in turn. Errors: InvalidInput for shapes and rows that are not
// numbers, and for a folder without a ggml that works here. With compute_dtype int8 both products
// are in 8 bits, and all are compared with the peak of vpdpbusd or the bandwidth.
std::vector<BenchRow> BenchNf4Matmul(Context& context, Clock clock,
                                     const BenchGemmOptions& options);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_GEMM_H_
