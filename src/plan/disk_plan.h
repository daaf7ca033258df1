// The space that a run needs on the disk.
#ifndef QLORA_PLAN_DISK_PLAN_H_
#define QLORA_PLAN_DISK_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "adapter/lora.h"
#include "qlora/train_options.h"
#include "qlora/train_plan.h"

namespace qlora {

// Bytes of the files of the tokenizer that a run copies.
struct TokenizerBytes {
  std::size_t adapter = 0;     // beside the finished adapter
  std::size_t checkpoint = 0;  // in each checkpoint
};

// An upper bound: the adapter in float32, the optimizer's state as it is in memory, headers and log
// lines at their longest. memory: where the run computes. steps_per_epoch: steps of the first
// epoch. A plan that exceeds the free space says so in `shortage`, with changes that would help.
DiskPlan PlanDisk(const TrainOptions& options, const LoraAdapter& adapter, const Memory& memory,
                  const TokenizerBytes& tokenizer, std::int64_t total_steps,
                  std::int64_t steps_per_epoch);

// Throws the shortage of a plan that does not fit. Errors: OutOfMemory; InvalidInput (disk).
void CheckShortage(const MemoryPlan& memory, const DiskPlan& disk);

}  // namespace qlora

#endif  // QLORA_PLAN_DISK_PLAN_H_
