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
  kCosineWarmupWithMinLr,
  kWarmupStableDecay,
};

// True for a schedule that falls to an end, which min_lr may raise.
bool HasEnd(SchedulerType type);

// True for a schedule with a cosine that is not restarted, whose waves are lr_scheduler_waves.
bool HasWaves(SchedulerType type);

// "linear", "cosine", ...; InvalidInput for an unknown name.
SchedulerType ParseSchedulerType(std::string_view name);
std::vector<std::string> SchedulerNames();

struct Schedule {
  SchedulerType type = SchedulerType::kLinear;
  double learning_rate = 0;  // the highest rate
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  double cycles = 1;           // kCosineWithRestarts
  double waves = 0.5;          // of the cosine, in other types that have one
  std::int64_t timescale = 0;  // kInverseSqrt; 0: the warm-up steps, or 10000 without warm-up
  double warmup_rate = -1;     // kCosineWarmupWithMinLr: the first share; -1: 1 / warmup_steps
  double end = 0;    // the rate at the end, as a share of the highest; of types that HasEnd
  double power = 1;  // kPolynomial
  // kWarmupStableDecay. decay: from 1 to 0; rise: from 0 to 1, nullptr for a line.
  std::int64_t stable_steps = -1;  // -1: what warm-up and decay leave
  std::int64_t decay_steps = 0;
  double (*decay)(double progress) = nullptr;
  double (*rise)(double progress) = nullptr;

  // The learning rate of optimizer step `step`, counted from 0. With warm-up the first is 0, but
  // for kCosineWarmupWithMinLr.
  double At(std::int64_t step) const;
  // True where the rate of each step is 0.
  bool IsZero() const;

 private:
  double InWarmup(double step) const;
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
