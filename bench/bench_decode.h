// `qlora-bench decode`: the speed of writing texts with a whole model with random weights.
#ifndef QLORA_BENCH_BENCH_DECODE_H_
#define QLORA_BENCH_BENCH_DECODE_H_

#include <cstdint>
#include <vector>

#include "bench/bench_model.h"
#include "bench/bench_row.h"
#include "qlora/context.h"
#include "qlora/options.h"

namespace qlora::bench {

struct DecodeBenchOptions {
  ModelBenchOptions model;
  std::int64_t prompt_tokens = 512;
  std::int64_t new_tokens = 32;
  std::int64_t sequences = 1;
  std::int64_t adapters = 0;
  std::int64_t prompt_rows = 1024;  // of a step

  void Declare(OptionTable& table);
};

// Rows for each format of weights: prefill of prompt_tokens compared with the peak of
// multiply-adds, and decoding compared with the time that reading takes at the bandwidth measured
// in this run: linears and output head, once for all sequences, and keys and values of the
// positions before, or with the peak of multiply-adds, whichever is slower; at last, tokens that
// were written over all of the time.
std::vector<BenchRow> BenchDecode(Context& context, Clock clock, const DecodeBenchOptions& options);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_DECODE_H_
