#include "plan/run/run_fit.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/resume_options.h"
#include "checkpoint/resume_point.h"
#include "io/json.h"
#include "objective/anchored.h"
#include "objective/decision.h"
#include "objective/preference.h"
#include "objective/supervised.h"
#include "plan/disk_plan.h"
#include "plan/fit_memory.h"
#include "plan/new_adapter.h"
#include "plan/preference_notes.h"
#include "plan/preference_options.h"
#include "plan/stage_plan.h"
#include "plan/visited_samples.h"
#include "step/optimizer.h"
#include "tokenizer/adapter_files.h"

namespace qlora {
namespace {

// Random numbers of a micro-batch are keyed by its number in so many bits (pass/linear_group.cc).
constexpr std::int64_t kMostMicroBatches = std::int64_t{1} << 25;

constexpr double kHighRate = 0.5;  // no optimizer here trains an adapter well with such a rate

// Errors: InvalidInput for options that the objective of these records does not use.
std::shared_ptr<const Objective> ObjectiveOf(const TrainOptions& options, const RunStart& start,
                                             const RunData& data) {
  const bool decides = data.train.layout().kind == PromptLayout::Kind::kDecision;
  if (!decides && (options.brier_weight != 0 || options.ordinal_weight != 0)) {
    ThrowInvalidInput(
        "brier_weight and ordinal_weight are weights of the objective decision, and the records "
        "ask no questions; leave them out");
  }
  if (TrainsPreferences(options)) {
    return std::make_shared<PreferenceObjective>(PreferenceLossOf(options));
  }
  if (!decides) return std::make_shared<Supervised>(options.label_smoothing_factor);
  if (options.objective == "sft") {
    ThrowInvalidInput(
        "objective: the records are questions with answers, expected decision or auto");
  }
  if (data.calibration && start.place.stages > 1) {
    ThrowInvalidInput(
        "calibration_dataset, calibration_size: a run with pipeline_stages fits no temperatures; "
        "leave them out, and run qlora calibrate after it");
  }
  if (options.data.reading.train_on_inputs) {
    ThrowInvalidInput("train_on_inputs: the objective decision trains answers alone; leave it out");
  }
  const DecisionLossOptions loss{options.label_smoothing_factor, options.brier_weight,
                                 options.ordinal_weight};
  CheckLossOptions(loss);
  return std::make_shared<DecisionObjective>(loss);
}

std::shared_ptr<const Objective> WithAnchors(std::shared_ptr<const Objective> objective,
                                             const TrainOptions& options) {
  if (options.anchor.empty()) return objective;
  return std::make_shared<Anchored>(std::move(objective), options.anchor_weight);
}

RunSteps StepsOf(const TrainOptions& options, const BatchStream& stream, FittedRun fitted,
                 std::shared_ptr<const Objective> objective) {
  RunSteps steps;
  steps.schedule = ScheduleOf(options, stream);
  steps.step.rates = GroupRatesOf(options);
  steps.step.max_grad_norm = options.max_grad_norm;
  steps.step.seed = static_cast<std::uint64_t>(options.seed);
  steps.step.neftune_alpha = options.neftune_noise_alpha;
  steps.step.objective = std::move(objective);
  steps.step.recompute = fitted.needs.recompute;
  steps.needs = std::move(fitted.needs);
  steps.positions = fitted.positions;
  return steps;
}

void CheckRandomNumbers(const TrainOptions& options, std::int64_t steps) {
  const bool draws = options.lora_dropout > 0 || options.neftune_noise_alpha > 0;
  if (!draws || steps <= kMostMicroBatches / options.gradient_accumulation_steps) return;
  ThrowInvalidInput(
      "{} steps of {} micro-batches: with lora_dropout or neftune_noise_alpha a run has at most "
      "{} micro-batches; set a larger per_device_train_batch_size",
      steps, options.gradient_accumulation_steps, kMostMicroBatches);
}

DiskPlan DiskOf(const TrainOptions& options, const RunStart& start, const RunBase& base,
                const RunData& data, const Memory& memory, const BatchStream& stream,
                std::int64_t steps) {
  const std::size_t tokenizer = TokenizerFileBytes(base.model_dir, options.adapter);
  DiskPlan disk =
      PlanDisk(options, base.adapter, memory, {tokenizer, data.has_other_tokenizer ? tokenizer : 0},
               steps, StepsOfEpoch(options, stream, 0));
  // Rank 0 alone writes, but for moments in a file.
  if (start.place.rank != 0 && !OptimizerOf(options).paged) disk.shortage.clear();
  return disk;
}

// ChangeBase may still replace the base, which is compared again when the run starts. Returns a
// note, or "".
std::string CheckResumedOptions(const TrainOptions& options, const RunStart& start,
                                const RunBase& base, const RunData& data) {
  if (!start.checkpoint) return "";
  const Json recorded =
      RecordedOptions(options, base.recorded, data.train, data.held_out ? &*data.held_out : nullptr,
                      data.anchors ? &*data.anchors : nullptr);
  CheckOptionsOnResume(*start.checkpoint, recorded, /*base_may_change=*/true);
  if (!SplitsStepsAgain(*start.checkpoint, recorded)) return "";
  return "steps are split into other micro-batches than before: a step has the same samples, but "
         "sums are rounded in another order, and dropout and NEFTune draw other numbers";
}

// Finds steps and evaluation data of one prompt.
void CheckMismatches(const TrainOptions& options, const RunData& data, std::int64_t steps) {
  VisitedBy(options, data, {}, steps, true);
  if (data.held_out) VisitedByEvaluation(*data.held_out, true);
}

// A damaged adapter is found now, not when the weights have been loaded.
void CheckAdapters(const TrainOptions& options, const DecoderConfig& config) {
  const auto read = [&](const TrainOptions& of_adapter) {
    DescribeAdapter(of_adapter, config, HostMemory()).Read(of_adapter.adapter);
  };
  if (!options.adapter.empty()) read(options);
  if (const auto reference = OptionsOfReference(options)) read(*reference);
}

std::string WarnOfHighRate(const TrainOptions& options) {
  if (options.learning_rate < kHighRate) return "";
  return fmt::format("learning_rate {} is far above the usual 1e-5 to 1e-3; the run may diverge",
                     options.learning_rate);
}

// An adapter learns little in a few steps, and nothing else would say so.
std::string WarnOfFewSteps(const TrainOptions& options, const RunStart& start,
                           const BatchStream& stream, std::int64_t steps) {
  constexpr std::int64_t kFew = 50;
  if (steps >= kFew || options.max_steps > 0 || start.checkpoint) return "";
  const std::int64_t of_epoch = StepsOfEpoch(options, stream, 0);
  const std::int64_t epochs = (kFew + of_epoch - 1) / of_epoch;
  return fmt::format("{} steps are few for an adapter to learn from: num_train_epochs {} makes {}",
                     steps, epochs, epochs * of_epoch);
}

}  // namespace

RunFit FitRun(Context& context, const TrainOptions& options, const RunStart& start,
              const RunBase& base, const RunData& data) {
  const std::unique_ptr<Backend> backend = start.backends->Make(context, base.precision);
  const BatchStream stream(data.train, data.stream);
  const auto parts = PartsOfStages(base.adapter, base.stages);
  const DataExtent extent = ExtentOf(data);
  FittedRun fitted =
      FitMemory({options, extent, data.prompts, base.config, base.precision, base.adapter,
                 base.weights, *backend, start.place, parts[start.place.stage()]});
  RunFit fit;
  fit.memory = std::move(fitted.plan);
  fit.ranks = PlanRanks(start.place, base.stages, base.adapter, base.config,
                        fitted.needs.train_rows, base.precision.wide);
  fit.steps = StepsOf(options, stream, std::move(fitted),
                      WithAnchors(ObjectiveOf(options, start, data), options));
  MetricNamed(*fit.steps.step.objective, options.metric_for_best_model);
  const Schedule& schedule = fit.steps.schedule;
  if (fit.steps.step.objective->needs_kl()) CheckMismatches(options, data, schedule.total_steps);
  CheckRandomNumbers(options, schedule.total_steps);
  if (start.checkpoint) {
    fit.resume = FindResumePoint(*start.checkpoint, options, schedule.total_steps);
  }
  fit.disk = DiskOf(options, start, base, data, backend->memory(), stream, schedule.total_steps);
  if (fit.memory.shortage.empty()) CheckAdapters(options, base.config);
  fit.notes = {WarnOfHighRate(options),
               NoteOfReference(options),
               WarnOfLowRates(options, schedule),
               WarnOfNoCheckpoint(options, schedule),
               WarnOfFewSteps(options, start, stream, schedule.total_steps),
               CheckResumedOptions(options, start, base, data),
               start.checkpoint ? NoteUnrecorded(*start.checkpoint) : ""};
  return fit;
}

}  // namespace qlora
