#include "plan/disk_plan.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/printable.h"
#include "checkpoint/checkpoint_folders.h"
#include "plan/run/run_folder.h"
#include "step/interval.h"
#include "step/optimizer.h"

namespace qlora {
namespace {

// The JSON files of an adapter or a checkpoint, and the headers of their tensors.
constexpr std::size_t kSmallFiles = std::size_t{1} << 16;
constexpr std::size_t kHeaderPerTensor = 200;
// A step in all logs together.
constexpr std::size_t kLogPerStep = 2000;

// The error of CheckPlan for a plan that exceeds the free space; "" when it fits, or when the free
// space is unknown.
std::string ShortageOf(const DiskPlan& plan) {
  if (!plan.known || plan.needed <= plan.free) return "";
  return fmt::format(
      "output_dir: the run writes up to {} (checkpoints: {} of {}) but {} has {} free; choose "
      "another output_dir, fewer checkpoints, or a save_total_limit",
      FormatBytes(plan.needed), plan.checkpoints, FormatBytes(plan.checkpoint), plan.folder,
      FormatBytes(plan.free));
}

}  // namespace

DiskPlan PlanDisk(const TrainOptions& options, const LoraAdapter& adapter, const Memory& memory,
                  const TokenizerBytes& tokenizer, std::int64_t total_steps,
                  std::int64_t steps_per_epoch) {
  // A and B of each linear that is adapted.
  std::size_t tensors = 0;
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) { tensors += lora.rank == 0 ? 0 : 2; });
  }
  const std::size_t values = sizeof(float) * static_cast<std::size_t>(adapter.parameters().cols);
  DiskPlan plan;
  plan.folder = ExistingAncestor(options.output_dir).string();
  const std::size_t bare_adapter = values + tensors * kHeaderPerTensor + kSmallFiles;
  plan.adapter = bare_adapter + tokenizer.adapter;
  const OptimizerType optimizer = OptimizerOf(options);
  plan.checkpoint =
      bare_adapter + tokenizer.checkpoint + Optimizer::StateBytes(optimizer, adapter) + kSmallFiles;

  // Checkpoints by save_steps and the like, of the best evaluation and, until it is removed, of the
  // best one before, and of the last step. While the oldest is not yet removed there is one more
  // than the limit, which the newest and the best one may exceed.
  const Interval every = SaveInterval(options, total_steps);
  std::int64_t most = TimesIn(every, total_steps, steps_per_epoch);
  if (options.load_best_model_at_end) {
    most += std::min<std::int64_t>(
        TimesIn(EvalInterval(options, total_steps), total_steps, steps_per_epoch), 2);
  }
  if (every.steps == 0 || total_steps % every.steps != 0) ++most;
  const std::int64_t least = options.load_best_model_at_end ? 2 : 1;
  if (options.save_total_limit > 0) {
    most = std::min(most, std::max(options.save_total_limit, least) + 1);
  }
  // Checkpoints that exist occupy space that `free` does not count, and are replaced by new ones up
  // to the limit. At least one more is written.
  const std::int64_t there = std::ssize(ListCheckpoints(options.output_dir));
  plan.checkpoints = std::max<std::int64_t>(most - there, 1);
  plan.needed = plan.adapter + Optimizer::FileBytes(optimizer, adapter, memory) +
                static_cast<std::size_t>(plan.checkpoints) * plan.checkpoint +
                static_cast<std::size_t>(total_steps) * kLogPerStep;

  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(plan.folder, error);
  if (error) ThrowRuntime("{}: free space cannot be read: {}", plan.folder, error.message());
  plan.known = space.capacity > 0;  // /proc and similar file systems report 0
  plan.free = space.available;
  plan.shortage = ShortageOf(plan);
  return plan;
}

void CheckShortage(const MemoryPlan& memory, const DiskPlan& disk) {
  if (!memory.shortage.empty()) throw Error(ErrorCode::kOutOfMemory, memory.shortage);
  if (!disk.shortage.empty()) throw Error(ErrorCode::kInvalidInput, disk.shortage);
}

}  // namespace qlora
