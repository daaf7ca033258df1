// `qlora-bench nf4`: how near NF4 comes to the speed of memory.
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

// For each size: read bandwidth, and copy bandwidth for as many bytes written as read, 4 times and
// 7 times as many; dequantize to bf16 (which writes 3.6 times the bytes that it reads) and f32 (7.1
// times) against the copy bandwidth of that proportion for the bytes that it moves, because memory
// takes fewer writes than reads; quantize from f32 and bf16 against the read bandwidth for its
// input; scale search. Needs memory for three float32 matrices.
std::vector<BenchRow> BenchNf4(Context& context, Clock clock, const BenchNf4Options& options = {});

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_NF4_H_
