// One QLoRA micro-step of a whole model with random weights.
#ifndef QLORA_BENCH_BENCH_STEP_H_
#define QLORA_BENCH_BENCH_STEP_H_

#include <cstdint>
#include <vector>

#include "bench/bench_row.h"
#include "model/decoder.h"
#include "qlora/context.h"
#include "qlora/options.h"

namespace qlora::bench {

struct StepBenchOptions {
  // TinyLlama-1.1B, unless said otherwise.
  std::int64_t hidden_size = 2048;
  std::int64_t intermediate_size = 5632;
  std::int64_t num_hidden_layers = 22;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 4;
  std::int64_t vocab_size = 32000;
  std::int64_t lora_r = 16;
  std::int64_t max_length = 512;
  std::int64_t per_device_train_batch_size = 1;
  bool gradient_checkpointing = true;
  bool load_in_4bit = true;
  std::string compute_dtype = "auto";
  std::int64_t steps = 3;

  void Declare(OptionTable& table);
};

// FLOPs of one micro-step of `rows` tokens in sequences of `length`, all of them supervised; what
// is recomputed counts. docs/performance.md has the formula.
double StepFlops(const DecoderConfig& config, std::int64_t lora_r, std::int64_t rows,
                 std::int64_t length, bool recompute);

// Rows: tokens/s with the FLOP/s reached beside the measured peak, and peak memory.
std::vector<BenchRow> BenchStep(Context& context, const StepBenchOptions& options);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_STEP_H_
