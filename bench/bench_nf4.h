// `qlora bench nf4`: how near NF4 comes to the speed of memory.
#ifndef QLORA_BENCH_BENCH_NF4_H_
#define QLORA_BENCH_BENCH_NF4_H_

#include <cstdint>
#include <vector>

#include "bench/bench_row.h"
#include "qlora/context.h"

namespace qlora::bench {

struct BenchNf4Options {
  std::vector<std::int64_t> sizes = {4096, 8192};  // square matrices
  std::int64_t block_size = 64;
  int repetitions = 15;
};

// For each size: read and copy bandwidth over memory of the size of the float32 matrix; dequantize
// to bf16 and f32 against the copy bandwidth for the bytes that it moves; quantize from f32 and
// bf16 against the read bandwidth for its input; scale search. Needs 3 float32 matrices of memory.
std::vector<BenchRow> BenchNf4(Context& context, const BenchNf4Options& options = {});

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_NF4_H_
