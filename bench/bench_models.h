// `qlora-bench models`: a table of training steps of well-known models.
#ifndef QLORA_BENCH_BENCH_MODELS_H_
#define QLORA_BENCH_BENCH_MODELS_H_

#include <ostream>
#include <string>
#include <vector>

#include "bench/bench_clock.h"
#include "bench/bench_step.h"
#include "qlora/options.h"

namespace qlora::bench {

struct ModelsBenchOptions {
  // Declared by StepBenchOptions and ModelBenchOptions; model.shape is none, and
  // model.num_hidden_layers is at most that of each model.
  StepBenchOptions step;
  std::vector<std::string> models = {"Qwen3-0.6B",   "Qwen3-4B",  "Qwen3.5-0.8B", "Qwen3.5-4B",
                                     "gemma-4-E2B",  "LFM2-1.2B", "LFM3-1.7B",    "Llama-3.2-1B",
                                     "Llama-3.2-3B", "SmolLM3-3B"};
  std::vector<std::string> compute_dtypes = {"float32", "bfloat16", "int8"};

  void Declare(OptionTable& table);
};

// Measures a step (BenchStep) of each model in each of the model's formats and each type, each in a
// process of its own, whose memory is then that of the step alone, and writes a table in Markdown,
// or with `json` an object, to `out`: tokens/s, the share of the limit, the peak memory. With fewer
// layers than a model has, tokens/s of all of them are those at the same share of the limit of
// their arithmetic, and the memory has the bytes of the other layers added; such rows are marked.
// threads: as for Context. No other thread may run, since processes are forked. Errors:
// InvalidInput for names that are not known; Runtime for a measurement that ends before its time.
void BenchModels(int threads, Clock clock, const ModelsBenchOptions& options, bool json,
                 std::ostream& out);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_MODELS_H_
