// How many steps a run has, and the learning rate of each, with the arithmetic of Hugging Face
// transformers' get_scheduler.
#ifndef QLORA_STEP_SCHEDULE_H_
#define QLORA_STEP_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/batch_stream.h"
#include "qlora/train_options.h"

namespace qlora {

enum class SchedulerType : std::uint8_t {
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kConstant,  // without warm-up, as in transformers
  kConstantWithWarmup,
  kInverseSqrt,
  kPolynomial,
  kCosineWithMinLr,
  kWarmupStableDecay,
};

// True for a schedule that falls to an end, which min_lr may raise.
bool HasEnd(SchedulerType type);

// "linear", "cosine", ...; InvalidInput for an unknown name.
SchedulerType ParseSchedulerType(std::string_view name);
std::vector<std::string> SchedulerNames();

struct Schedule {
  SchedulerType type = SchedulerType::kLinear;
  double learning_rate = 0;  // the highest rate
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  std::int64_t cycles = 1;  // kCosineWithRestarts
  double end = 0;           // the rate at the end, as a share of the highest; of types that HasEnd
  double power = 1;         // kPolynomial
  std::int64_t decay_steps = 0;                // kWarmupStableDecay
  double (*decay)(double progress) = nullptr;  // kWarmupStableDecay: from 1 to 0

  // The learning rate of optimizer step `step`, counted from 0. With warm-up the first is 0.
  double At(std::int64_t step) const;
  // True where the rate of each step is 0.
  bool IsZero() const;
};

// Steps of an epoch: each but the last takes gradient_accumulation_steps micro-batches.
std::int64_t StepsOfEpoch(const TrainOptions& options, const BatchStream& stream,
                          std::int64_t epoch);

// The schedule of max_steps steps, or of num_train_epochs passes over the data.
Schedule ScheduleOf(const TrainOptions& options, const BatchStream& stream);

// A warning about a run whose rates are all 0, which trains nothing, or whose warm-up takes a third
// of it or more; otherwise "".
std::string WarnOfLowRates(const TrainOptions& options, const Schedule& schedule);

// A warning about a long run whose only checkpoint is written at its end, or "".
std::string WarnOfNoCheckpoint(const TrainOptions& options, const Schedule& schedule);

}  // namespace qlora

#endif  // QLORA_STEP_SCHEDULE_H_
