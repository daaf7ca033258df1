// The memory that a training run will need, computed before any weight is read.
#ifndef QLORA_PLAN_MEMORY_PLAN_H_
#define QLORA_PLAN_MEMORY_PLAN_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/data_options.h"
#include "pass/decoder.h"
#include "pass/pass_shape.h"
#include "qlora/context.h"
#include "qlora/train_plan.h"

namespace qlora {

// The passes that the arena of activations must hold.
struct ActivationNeeds {
  std::int64_t train_rows = 0;    // rows of the largest micro-batch
  std::int64_t train_length = 0;  // tokens of its longest sequence
  std::int64_t eval_rows = 0;     // 0: no evaluation
  std::int64_t in_flight = 1;     // micro-batches whose activations a stage keeps at a time
  std::vector<Recompute> recompute;
  std::int64_t train_unfolded = 0;  // Batch::unfolded_rows of the largest micro-batch
  std::int64_t eval_unfolded = 0;
  std::int64_t anchor_rows = 0;  // of an anchor, with gradients and without; 0: none
  bool writes_samples = false;   // in passes of a pool, within eval_rows
};

// The largest operands of a run, for Backend::Reserve.
BackendLimits LimitsOf(const DecoderConfig& config, const LoraAdapter& adapter,
                       const ActivationNeeds& needs);

// The memory of each of the passes of a run that are in flight; the first one also evaluates.
std::vector<std::size_t> BytesOfPasses(const DecoderConfig& config, const LoraAdapter& adapter,
                                       const Precision& precision, const ActivationNeeds& needs);

MemoryPlan PlanMemory(const Backend& backend, const DecoderConfig& config,
                      const LoraAdapter& adapter, const Precision& precision,
                      const WeightSizes& weights, const ActivationNeeds& needs,
                      std::size_t optimizer_bytes);

// The fastest choice that fits: as few layers as possible recompute their attention, which costs
// less time for each byte that it saves than their MLP, then whole layers. `bytes` gives the peak
// for the levels of all layers. If nothing fits, the result is kLayer for all layers.
std::vector<Recompute> ChooseRecompute(
    std::int64_t layers, std::size_t limit,
    const std::function<std::size_t(const std::vector<Recompute>&)>& bytes);

// "none", "attention", "mlp", "layer".
std::vector<std::string> RecomputeNames();
// Errors: InvalidInput for a text that is not among RecomputeNames.
Recompute ParseRecompute(const std::string& text);
const char* NameOf(Recompute level);
// "none in 22 of 22 layers", "attention in 3 of 22 layers, layer in 19 of 22 layers", ...
std::string DescribeRecompute(std::span<const Recompute> levels);

// The bytes of `memory` that a run may use, with the bytes that the process holds: max_memory ("":
// no limit), or the free memory if that is less. `spare`: fraction of free memory that is left to
// others when max_memory is not set. sharers: ranks that share the free memory; 0: the run will be
// on other machines, which have max_memory.
std::size_t MemoryLimit(const std::string& max_memory, double spare, const Memory& memory,
                        int sharers = 1);

// "6GB", "512MiB", "1.5g", "1000000" -> bytes. Errors: InvalidInput, also for less than 1000000
// without a unit.
std::size_t ParseBytes(const std::string& text);

// What readers of data may take: no more than max_memory.
ReadingLimits ReadingLimitsOf(const TrainOptions& options);

// The error of CheckPlan when the plan exceeds max_memory ("": no limit) or the free bytes of
// `memory`; "" when it fits. what_fits(limit) names a remedy. sharers: as for MemoryLimit.
std::string MemoryShortage(const MemoryPlan& plan, const std::string& max_memory,
                           const Memory& memory, int sharers,
                           const std::function<std::string(std::size_t limit)>& what_fits);

}  // namespace qlora

#endif  // QLORA_PLAN_MEMORY_PLAN_H_
