#include "step/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/check.h"

namespace qlora {
namespace {

constexpr auto kSchedulerNames = std::to_array<std::pair<std::string_view, SchedulerType>>({
    {"linear", SchedulerType::kLinear},
    {"cosine", SchedulerType::kCosine},
    {"cosine_with_restarts", SchedulerType::kCosineWithRestarts},
    {"constant", SchedulerType::kConstant},
    {"constant_with_warmup", SchedulerType::kConstantWithWarmup},
    {"inverse_sqrt", SchedulerType::kInverseSqrt},
});

// With packing, epochs differ in their number of micro-batches, so each epoch is asked for. A
// fraction of the last epoch is rounded up to whole steps.
std::int64_t StepsOfEpochs(const TrainOptions& options, const BatchStream& stream) {
  const auto whole = static_cast<std::int64_t>(options.num_train_epochs);
  std::int64_t steps = 0;
  for (std::int64_t epoch = 0; epoch < whole; ++epoch) {
    steps += StepsOfEpoch(options, stream, epoch);
  }
  const double rest = options.num_train_epochs - static_cast<double>(whole);
  if (rest > 0) {
    const auto last = static_cast<double>(StepsOfEpoch(options, stream, whole));
    steps += static_cast<std::int64_t>(std::ceil(rest * last));
  }
  return steps;
}

// Rounded up, as transformers does.
std::int64_t WarmupSteps(const TrainOptions& options, std::int64_t total_steps) {
  if (options.warmup_steps > 0) return options.warmup_steps;
  return static_cast<std::int64_t>(
      std::ceil(options.warmup_ratio * static_cast<double>(total_steps)));
}

}  // namespace

SchedulerType ParseSchedulerType(std::string_view name) {
  for (const auto& [known, type] : kSchedulerNames) {
    if (known == name) return type;
  }
  ThrowInvalidInput("unknown lr_scheduler_type '{}'", name);
}

std::vector<std::string> SchedulerNames() {
  std::vector<std::string> names;
  for (const auto& entry : kSchedulerNames) names.emplace_back(entry.first);
  return names;
}

// With lr the highest rate, w warm-up steps, n steps and p = (step - w) / (n - w):
//
//   step < w              lr step / w
//   linear                lr (1 - p)
//   cosine                lr (1 + cos(pi p)) / 2
//   cosine_with_restarts  lr (1 + cos(pi frac(cycles p))) / 2
//   inverse_sqrt          lr / sqrt(1 + (step - w) / t), t = w or 10000
double Schedule::At(std::int64_t step) const {
  if (type == SchedulerType::kConstant) return learning_rate;
  const double s = static_cast<double>(step);
  const double warmup = static_cast<double>(warmup_steps);
  if (step < warmup_steps) return learning_rate * s / std::max(1.0, warmup);
  const double span = std::max(1.0, static_cast<double>(total_steps - warmup_steps));
  const double progress = (s - warmup) / span;
  switch (type) {
    case SchedulerType::kConstant:
    case SchedulerType::kConstantWithWarmup:
      return learning_rate;
    case SchedulerType::kLinear:
      return learning_rate * std::max(0.0, 1 - progress);
    case SchedulerType::kCosine:
      return learning_rate * std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
    case SchedulerType::kCosineWithRestarts: {
      if (progress >= 1) return 0;
      const double phase = std::fmod(static_cast<double>(cycles) * progress, 1.0);
      return learning_rate * std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * phase)));
    }
    case SchedulerType::kInverseSqrt: {
      // transformers: timescale = warm-up steps, or 10000 without warm-up.
      const double timescale = warmup_steps > 0 ? warmup : 10000.0;
      return learning_rate / std::sqrt((s + timescale - warmup) / timescale);
    }
  }
  return learning_rate;
}

std::int64_t StepsOfEpoch(const TrainOptions& options, const BatchStream& stream,
                          std::int64_t epoch) {
  const std::int64_t window = options.gradient_accumulation_steps;
  return (stream.MicroBatchesIn(epoch) + window - 1) / window;
}

Schedule ScheduleOf(const TrainOptions& options, const BatchStream& stream) {
  Schedule schedule;
  schedule.type = ParseSchedulerType(options.lr_scheduler_type);
  schedule.learning_rate = options.learning_rate;
  schedule.total_steps = options.max_steps > 0 ? options.max_steps : StepsOfEpochs(options, stream);
  if (schedule.type != SchedulerType::kConstant) {
    schedule.warmup_steps = WarmupSteps(options, schedule.total_steps);
  }
  schedule.cycles = options.lr_scheduler_cycles;
  return schedule;
}

std::string WarnOfWarmup(const TrainOptions& options, const Schedule& schedule) {
  const std::int64_t warmup = std::min(schedule.warmup_steps, schedule.total_steps);
  // Rounded up, the default ratio takes a third of a run of 3 steps: the first has a rate of 0.
  if (warmup == 0 || 3 * warmup < schedule.total_steps) return {};
  return fmt::format(
      "warm-up eats the run: the learning rate rises during {} of {} steps{}; lower {}, or train "
      "for more steps",
      warmup, schedule.total_steps,
      warmup == schedule.total_steps ? " and never reaches its peak" : "",
      options.warmup_steps > 0 ? "warmup_steps" : "warmup_ratio");
}

std::string WarnOfNoCheckpoint(const TrainOptions& options, const Schedule& schedule) {
  constexpr std::int64_t kLongRun = 200;  // steps; a shorter run is soon repeated
  const bool saves = options.save_steps > 0 && options.save_steps < schedule.total_steps;
  // With load_best_model_at_end, evaluations save checkpoints.
  if (schedule.total_steps <= kLongRun || saves || options.load_best_model_at_end) return {};
  return "no checkpoint is saved before the end; a crash would lose the run: --save_steps N";
}

}  // namespace qlora
