// One QLoRA micro-step of a whole model with random weights.
#ifndef QLORA_BENCH_BENCH_STEP_H_
#define QLORA_BENCH_BENCH_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_clock.h"
#include "bench/bench_model.h"
#include "bench/bench_row.h"
#include "pass/flops.h"
#include "qlora/context.h"
#include "qlora/options.h"

namespace qlora::bench {

struct StepBenchOptions {
  ModelBenchOptions model;
  std::int64_t max_length = 512;
  std::int64_t per_device_train_batch_size = 1;
  std::string recompute = "layer";
  std::string optim = "adamw";
  std::vector<std::string> objectives = {"supervised"};
  bool share_prefix = true;
  std::int64_t steps = 3;
  std::int64_t warmup_steps = 1;

  void Declare(OptionTable& table);
};

// Rows for each format of weights and each objective, whose models step in turn: tokens/s with the
// ratio of FLOP/s to the measured peak, tokens/s of the median step, the loss of the first step and
// of step 20 or the last, and the share of the step that each kind of op takes. With one model also
// peak memory.
std::vector<BenchRow> BenchStep(Context& context, Clock clock, const StepBenchOptions& options);

// What a step needs, without the parts of the process that are the same for any number of layers.
struct StepNeeds {
  Flops flops;
  Precision precision;
  double bytes = 0;  // of weights, adapter, gradients, moments and activations
};

// The needs of a step of the first of options.objectives and of the model's formats; nothing is
// computed.
StepNeeds NeedsOfStep(Context& context, const StepBenchOptions& options);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_STEP_H_
