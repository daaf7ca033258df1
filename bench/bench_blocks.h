// `qlora-bench blocks`: what rounding to ggml's blocks costs, in error and in time.
#ifndef QLORA_BENCH_BENCH_BLOCKS_H_
#define QLORA_BENCH_BENCH_BLOCKS_H_

#include <vector>

#include "bench/bench_row.h"
#include "qlora/context.h"

namespace qlora::bench {

// For each format that is written: the relative root mean square error of 256 rows of 4096 random
// values, normal and of Student's t distribution with 4 degrees of freedom, against the error of
// llama.cpp v0.5.0 on as many such values, and the time to encode them.
std::vector<BenchRow> BenchBlocks(Context& context, Clock clock);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_BLOCKS_H_
