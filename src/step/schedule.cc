#include "step/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/check.h"
#include "step/interval.h"

namespace qlora {
namespace {

constexpr auto kSchedulerNames = std::to_array<std::pair<std::string_view, SchedulerType>>({
    {"linear", SchedulerType::kLinear},
    {"cosine", SchedulerType::kCosine},
    {"cosine_with_restarts", SchedulerType::kCosineWithRestarts},
    {"constant", SchedulerType::kConstant},
    {"constant_with_warmup", SchedulerType::kConstantWithWarmup},
    {"inverse_sqrt", SchedulerType::kInverseSqrt},
    {"polynomial", SchedulerType::kPolynomial},
    {"cosine_with_min_lr", SchedulerType::kCosineWithMinLr},
    {"cosine_warmup_with_min_lr", SchedulerType::kCosineWarmupWithMinLr},
    {"warmup_stable_decay", SchedulerType::kWarmupStableDecay},
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

// Half a wave of the cosine, from 1 to 0. transformers never lets it fall below 0.
double CosineDecay(double progress) {
  return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}
double LinearDecay(double progress) { return 1 - progress; }
double RootDecay(double progress) { return 1 - std::sqrt(progress); }
double CosineRise(double progress) { return 0.5 * (1 - std::cos(std::numbers::pi * progress)); }
double RootRise(double progress) { return 1 - std::sqrt(1 - progress); }

// The share of the highest rate at which the schedule ends.
double EndOf(const TrainOptions& options, SchedulerType type) {
  if (options.min_lr_rate > 0) return options.min_lr_rate;
  double end = options.min_lr;
  // transformers' lr_end.
  if (type == SchedulerType::kPolynomial && end == 0) end = std::min(1e-7, options.learning_rate);
  return options.learning_rate > 0 ? end / options.learning_rate : 0;
}

std::int64_t DecaySteps(const TrainOptions& options, const Schedule& schedule) {
  const std::int64_t wanted =
      options.lr_decay_steps > 0 ? options.lr_decay_steps : (schedule.total_steps + 9) / 10;
  // Behind stable steps that are given, the end of the run cuts the decay.
  if (options.lr_stable_steps >= 0) return wanted;
  return std::clamp<std::int64_t>(schedule.total_steps - schedule.warmup_steps, 0, wanted);
}

// Rounded up, as transformers does; but the only step of a run is none, since its rate would be 0.
std::int64_t WarmupSteps(const TrainOptions& options, std::int64_t total_steps) {
  if (options.warmup_steps > 0) return options.warmup_steps;
  if (total_steps == 1) return 0;
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

bool HasEnd(SchedulerType type) {
  return type != SchedulerType::kConstant && type != SchedulerType::kConstantWithWarmup &&
         type != SchedulerType::kInverseSqrt;
}

bool HasWaves(SchedulerType type) {
  return type == SchedulerType::kCosine || type == SchedulerType::kCosineWithMinLr ||
         type == SchedulerType::kCosineWarmupWithMinLr || type == SchedulerType::kWarmupStableDecay;
}

std::vector<std::string> SchedulerNames() {
  std::vector<std::string> names;
  for (const auto& entry : kSchedulerNames) names.emplace_back(entry.first);
  return names;
}

// With lr the highest rate, w warm-up steps, n steps and p = (step - w) / (n - w):
//
//   step < w                   lr step / w
//   linear                     lr (1 - p)
//   cosine                     lr (1 + cos(2 pi waves p)) / 2
//   cosine_with_restarts       lr (1 + cos(pi frac(cycles p))) / 2
//   inverse_sqrt               lr / sqrt(1 + (step - w) / t), t = timescale, w or 10000
//   polynomial                 lr (1 - p)^power
//   cosine_with_min_lr         as cosine
//   cosine_warmup_with_min_lr  as cosine, one step ahead, in the warm-up too: lr (step + 1) / w, or
//                              from warmup_rate on in a line
//   warmup_stable_decay        lr until n - d, then lr decay((step - (n - d)) / d), of the last d
//                              steps; with stable steps s from w + s on; in the warm-up rise
//
// A factor f of lr becomes f (1 - e) + e where the schedule ends at e lr; in the warm-up that of
// warmup_stable_decay alone.
double Schedule::InWarmup(double step) const {
  const double warmup = std::max(1.0, static_cast<double>(warmup_steps));
  if (type == SchedulerType::kWarmupStableDecay) {
    const double factor = rise != nullptr ? rise(step / warmup) : step / warmup;
    return learning_rate * (factor * (1 - end) + end);
  }
  if (type == SchedulerType::kCosineWarmupWithMinLr) {
    if (warmup_rate < 0) return learning_rate * (step + 1) / warmup;
    const double progress = step / std::max(1.0, warmup - 1);
    return learning_rate * (warmup_rate + (1 - warmup_rate) * progress);
  }
  return learning_rate * step / warmup;
}

double Schedule::At(std::int64_t step) const {
  if (type == SchedulerType::kConstant) return learning_rate;
  const double s = static_cast<double>(step);
  const double warmup = static_cast<double>(warmup_steps);
  const auto above_end = [this](double factor) {
    return learning_rate * (factor * (1 - end) + end);
  };
  if (step < warmup_steps) return InWarmup(s);
  const double span = std::max(1.0, static_cast<double>(total_steps - warmup_steps));
  const double progress = (s - warmup) / span;
  switch (type) {
    case SchedulerType::kConstant:
    case SchedulerType::kConstantWithWarmup:
      return learning_rate;
    case SchedulerType::kLinear:
      return above_end(std::max(0.0, LinearDecay(progress)));
    case SchedulerType::kCosine:
    case SchedulerType::kCosineWithMinLr:
      return above_end(CosineDecay(2 * waves * progress));
    case SchedulerType::kCosineWarmupWithMinLr:
      return above_end(CosineDecay(2 * waves * (progress + 1 / span)));
    case SchedulerType::kCosineWithRestarts: {
      if (progress >= 1) return above_end(0);
      const double phase = std::fmod(cycles * progress, 1.0);
      return above_end(CosineDecay(phase));
    }
    case SchedulerType::kPolynomial:
      return above_end(std::pow(std::max(0.0, 1 - progress), power));
    case SchedulerType::kWarmupStableDecay: {
      const std::int64_t begin =
          stable_steps >= 0 ? warmup_steps + stable_steps : total_steps - decay_steps;
      const std::int64_t decayed = step - begin;
      if (decayed < 0) return learning_rate;
      if (decayed >= decay_steps) return above_end(0);
      return above_end(
          decay(2 * waves * static_cast<double>(decayed) / static_cast<double>(decay_steps)));
    }
    case SchedulerType::kInverseSqrt: {
      const double scale = timescale > 0      ? static_cast<double>(timescale)
                           : warmup_steps > 0 ? warmup
                                              : 10000.0;
      return learning_rate / std::sqrt((s + scale - warmup) / scale);
    }
  }
  return learning_rate;
}

bool Schedule::IsZero() const {
  if (learning_rate == 0) return true;
  for (std::int64_t step = 0; step < total_steps; ++step) {
    if (At(step) != 0) return false;
  }
  return true;
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
  if (HasEnd(schedule.type)) schedule.end = EndOf(options, schedule.type);
  schedule.power = options.lr_scheduler_power;
  schedule.timescale = options.lr_scheduler_timescale;
  schedule.warmup_rate = options.lr_warmup_rate;
  schedule.waves = options.lr_scheduler_waves;
  if (schedule.type == SchedulerType::kWarmupStableDecay) {
    schedule.stable_steps = options.lr_stable_steps;
    schedule.decay_steps = DecaySteps(options, schedule);
    schedule.rise = options.lr_warmup_type == "cosine"   ? CosineRise
                    : options.lr_warmup_type == "1-sqrt" ? RootRise
                                                         : nullptr;
    schedule.decay = options.lr_decay_type == "linear"   ? LinearDecay
                     : options.lr_decay_type == "1-sqrt" ? RootDecay
                                                         : CosineDecay;
  }
  return schedule;
}

std::string WarnOfLowRates(const TrainOptions& options, const Schedule& schedule) {
  const bool is_zero = schedule.IsZero();
  if (is_zero && schedule.learning_rate == 0) {
    return "learning_rate is 0: no step changes a weight, so that the run trains nothing";
  }
  const std::int64_t warmup = std::min(schedule.warmup_steps, schedule.total_steps);
  // Rounded up, the default ratio takes a third of a run of 3 steps: the first has a rate of 0.
  if (warmup == 0 || 3 * warmup < schedule.total_steps) return {};
  std::string_view effect;
  if (is_zero) {
    effect = ", with a learning rate of 0, so that the run trains nothing";
  } else if (warmup == schedule.total_steps) {
    effect = ", so the learning rate never reaches its peak";
  }
  return fmt::format("warm-up takes {} of {} steps{}; lower {}, or train for more steps", warmup,
                     schedule.total_steps, effect,
                     options.warmup_steps > 0 ? "warmup_steps" : "warmup_ratio");
}

std::string WarnOfNoCheckpoint(const TrainOptions& options, const Schedule& schedule) {
  constexpr std::int64_t kLongRun = 200;  // steps; a shorter run is soon repeated
  const Interval every = SaveInterval(options, schedule.total_steps);
  // The end of the first epoch may be the end of the run.
  const bool in_epochs =
      every.per_epoch > 1 || (every.per_epoch == 1 && (options.num_train_epochs > 1));
  const bool saves = in_epochs || (every.steps > 0 && every.steps < schedule.total_steps);
  // With load_best_model_at_end, evaluations save checkpoints.
  if (schedule.total_steps <= kLongRun || saves || options.load_best_model_at_end) return {};
  return "no checkpoint is saved before the end; a crash would lose the steps until then: "
         "--save_steps N";
}

}  // namespace qlora
