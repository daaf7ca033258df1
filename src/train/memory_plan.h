// What a training run will need, before any weight is read.
#ifndef QLORA_TRAIN_MEMORY_PLAN_H_
#define QLORA_TRAIN_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/decoder.h"
#include "qlora/train.h"

namespace qlora {

// What the arena of activations must hold.
struct ActivationNeeds {
  std::int64_t train_rows = 0;  // rows of the largest micro-batch
  std::int64_t eval_rows = 0;   // 0: no evaluation
  std::vector<Recompute> recompute;
};

// Bytes of that arena.
std::size_t ActivationBytes(const DecoderConfig& config, const LoraAdapter& adapter,
                            const Precision& precision, const ActivationNeeds& needs);

MemoryPlan PlanMemory(const Backend& backend, const DecoderConfig& config,
                      const LoraAdapter& adapter, const Precision& precision,
                      const WeightSizes& weights, const ActivationNeeds& needs);

// "6GB", "512MiB", "1.5g", "1000000" -> bytes. Errors: InvalidInput.
std::size_t ParseBytes(const std::string& text);

// Errors: OutOfMemory, with what would help, when the plan exceeds max_memory ("": none) or what is
// free.
void CheckMemory(const MemoryPlan& plan, const std::string& max_memory);

}  // namespace qlora

#endif  // QLORA_TRAIN_MEMORY_PLAN_H_
