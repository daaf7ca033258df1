#include "bench/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>

#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/memory_info.h"
#include "base/printable.h"
#include "bench/bench_limits.h"
#include "bench/bench_objective.h"
#include "bench/bench_weights.h"
#include "bench/timed_backend.h"
#include "model/shared_options.h"
#include "pass/flops.h"
#include "pass/pass_shape.h"
#include "plan/memory_plan.h"
#include "step/step.h"

namespace qlora::bench {
namespace {

// The passes of the step. All layers keep activations alike: a mixture would be another measurement
// for each free memory.
ActivationNeeds NeedsOf(const StepBenchOptions& options, const DecoderConfig& config,
                        const Batch& batch) {
  return {.train_rows = batch.rows(),
          .train_length = options.max_length,
          .eval_rows = 0,
          .recompute = std::vector<Recompute>(static_cast<std::size_t>(config.num_hidden_layers),
                                              ParseRecompute(options.recompute)),
          .train_unfolded = batch.unfolded_rows()};
}

Flops FlopsOf(const DecoderConfig& config, const LoraAdapter& adapter,
              const QuantizedShares& quantized, const Batch& batch, const ActivationNeeds& needs) {
  return StepFlops(config, adapter, quantized, batch.rows(), batch.supervised(), MeanLength(batch),
                   needs.recompute);
}

struct StepTimes {
  std::vector<double> timed;           // seconds of each timed step, the fastest first
  std::vector<double> losses;          // of all steps, from the first warmup step
  double parted = 0;                   // seconds of the step that the parts are of
  std::array<double, kParts> parts{};  // seconds

  double best() const { return timed.front(); }
};

// A model of one format in training for an objective. The backend must outlive it.
class TrainedModel {
 public:
  TrainedModel(Context& context, Clock clock, const StepBenchOptions& options,
               const std::string& format, const BenchObjective& objective,
               const DecoderConfig& config, const Precision& precision, Backend& backend)
      : backend_(backend, clock),
        objective_(objective),
        adapter_(RandomAdapter(options.model, config, backend.memory())),
        needs_(NeedsOf(options, config, objective.batch)),
        model_(context, backend_, config, format, WeightUse::kTraining),
        rule_(ParseOptimizer(options.optim)),
        optimizer_(rule_, WithGradients(), std::filesystem::temp_directory_path()),
        memories_(Reserve(config, precision)),
        decoder_(backend_, config, model_.get(), precision, options.max_length),
        // One micro-batch: nothing is accumulated.
        communicator_(context.communicator()),
        tree_(backend.memory(), RankPlace(), adapter_.gradients()) {
    step_.recompute = needs_.recompute;
    step_.max_grad_norm = 1;
    step_.objective = objective_.objective;
  }

  TimedBackend& backend() { return backend_; }
  const BenchObjective& objective() const { return objective_; }
  // Of a step.
  Flops flops() const {
    return FlopsOf(decoder_.config(), adapter_, QuantizedSharesOf(model_.get()), objective_.batch,
                   needs_);
  }

  // Runs the step of this number and returns its loss.
  double Step(std::int64_t s) {
    const UpdateArgs update{.rule = rule_.rule, .learning_rate = 1e-4, .step = s + 1};
    return TrainStep({decoder_, memories_, communicator_}, step_,
                     {.micro_batches = {{0, objective_.batch}},
                      .count = 1,
                      .first_micro_batch = s,
                      .totals = objective_.totals},
                     update, adapter_, tree_, optimizer_)
        .loss;
  }

 private:
  LoraAdapter& WithGradients() {
    adapter_.AllocateGradients();
    return adapter_;
  }
  std::vector<Arena> Reserve(const DecoderConfig& config, const Precision& precision) {
    backend_.Reserve(LimitsOf(config, adapter_, needs_));
    std::vector<Arena> memories;
    for (const std::size_t bytes : BytesOfPasses(config, adapter_, precision, needs_)) {
      memories.emplace_back(bytes, backend_.memory());
    }
    return memories;
  }

  TimedBackend backend_;
  BenchObjective objective_;
  LoraAdapter adapter_;
  ActivationNeeds needs_;
  RandomModel model_;
  OptimizerType rule_;
  Optimizer optimizer_;
  std::vector<Arena> memories_;
  Decoder decoder_;
  Communicator& communicator_;
  GradientTree tree_;
  StepOptions step_;
};

// Returns the times of each model; they step in turn.
std::vector<StepTimes> TimeSteps(Clock clock, const StepBenchOptions& options,
                                 std::span<const std::unique_ptr<TrainedModel>> models) {
  std::vector<StepTimes> all(models.size());
  const std::int64_t steps = options.warmup_steps + options.steps;
  for (std::int64_t s = 0; s < steps; ++s) {
    for (std::size_t i = 0; i < models.size(); ++i) {
      StepTimes& times = all[i];
      models[i]->backend().Reset();
      const Timer watch(clock);
      const double loss = models[i]->Step(s);
      const double seconds = watch.seconds();
      // Reported, since a change that makes steps faster must not change them.
      times.losses.push_back(loss);
      if (s < options.warmup_steps) continue;
      // Parts of the best step, to which the other figures belong as well.
      if (times.timed.empty() || seconds < std::ranges::min(times.timed)) {
        times.parted = seconds;
        times.parts = models[i]->backend().seconds();
      }
      times.timed.push_back(seconds);
    }
  }
  for (StepTimes& times : all) std::ranges::sort(times.timed);
  return all;
}

// flops, tokens: of one step.
void AddSpeed(const StepBenchOptions& options, const StepTimes& times, const Flops& flops,
              double tokens, const FlopRates& peak, RowList& rows) {
  const double best = times.best();
  const double least = SecondsOf(flops, peak);
  const double gflops = flops.sum() / 1e9;
  rows.Add("step " + options.model.ShapeText(), best, tokens / best, "tokens/s", tokens / least,
           kPeak);
  rows.Add("step", best, gflops / best, "GFLOP/s", gflops / least, kPeak);
  // The best shows the program's speed, the median a run's.
  const double median = times.timed[std::ssize(times.timed) / 2];
  rows.Add("step, median", median, tokens / median, "tokens/s");
  const std::int64_t last = options.warmup_steps + options.steps - 1;
  for (const std::int64_t s : {std::int64_t{0}, std::min<std::int64_t>(20, last)}) {
    rows.Add(fmt::format("loss of step {}", s), best, times.losses[s], "nats");
  }
}

void AddShares(const StepTimes& times, RowList& rows) {
  double others = 0;
  for (std::size_t i = 0; i < kParts; ++i) {
    const double part = times.parts[i];
    rows.Add(std::string("share of ") + kPartNames[i], part, 100 * part / times.parted, "%");
    // Products must be done; the other parts can be saved.
    if (i != static_cast<std::size_t>(Part::kProducts)) others += part;
  }
  rows.Add("share of all but products", others, 100 * others / times.parted, "%");
}

}  // namespace

void StepBenchOptions::Declare(OptionTable& table) {
  table.Section("step");
  table.Add("max_length", &max_length, "tokens per sequence");
  table.Add("per_device_train_batch_size", &per_device_train_batch_size,
            "sequences per micro-batch", {"batch_size"});
  table.Choice("recompute", &recompute, RecomputeNames(),
               "activations that each layer recomputes in its backward pass");
  table.Choice("optim", &optim, OptimizerNames(), "optimizer");
  table.Add("objectives", &objectives,
            "what steps train for: supervised, preference, decision, comma-separated; of as many "
            "tokens; steps of several take turns");
  table.Add("share_prefix", &share_prefix,
            "compute what answers or questions begin with once; false: with a copy for each");
  table.Add("steps", &steps, "timed steps; the fastest is reported");
  table.Add("warmup_steps", &warmup_steps, "steps before the timed steps");
}

std::vector<BenchRow> BenchStep(Context& context, Clock clock, const StepBenchOptions& options) {
  const DecoderConfig config = ConfigOf(options.model, options.max_length);
  const BackendFactory::Ptr backends = BackendFactory::ForJob(context, options.model.device);
  const Precision precision =
      ParsePrecision(options.model.compute_dtype, *backends, options.model.int8_backward);
  const std::unique_ptr<Backend> inner = backends->Make(context, precision);
  const std::vector<std::string> formats = options.model.Formats();
  std::vector<std::unique_ptr<TrainedModel>> models;
  std::vector<std::string> shapes;
  for (const std::string& name : options.objectives) {
    const BenchObjective objective =
        BenchObjectiveOf(name, config, options.per_device_train_batch_size, options.max_length,
                         options.share_prefix);
    std::string shape = fmt::format("{}x{} {}", options.per_device_train_batch_size,
                                    options.max_length, options.recompute);
    if (options.objectives.size() > 1) shape += " " + name;
    for (const std::string& format : formats) {
      models.push_back(std::make_unique<TrainedModel>(context, clock, options, format, objective,
                                                      config, precision, *inner));
      shapes.push_back(options.model.ShapeOf(shape, format));
    }
  }
  const std::vector<StepTimes> times = TimeSteps(clock, options, models);
  const auto used = static_cast<double>(PeakResidentBytes());
  const FlopRates peak = MeasureFlops(context, precision, clock);
  std::vector<BenchRow> all;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const auto tokens = static_cast<double>(models[i]->objective().batch.rows());
    RowList rows(shapes[i], OperandType(precision, formats[i % formats.size()]), context.threads());
    AddSpeed(options, times[i], models[i]->flops(), tokens, peak, rows);
    AddShares(times[i], rows);
    // Of several models, memory is not told apart.
    if (models.size() == 1) {
      rows.Add("peak memory of the process", times[i].best(), used / 1e9, "GB");
    }
    std::ranges::move(rows.Take(), std::back_inserter(all));
  }
  return all;
}

StepNeeds NeedsOfStep(Context& context, const StepBenchOptions& options) {
  const DecoderConfig config = ConfigOf(options.model, options.max_length);
  const BackendFactory::Ptr backends = BackendFactory::ForJob(context, options.model.device);
  const Precision precision =
      ParsePrecision(options.model.compute_dtype, *backends, options.model.int8_backward);
  const std::unique_ptr<Backend> backend = backends->Make(context, precision);
  const LoraAdapter adapter = RandomAdapter(options.model, config, backend->memory());
  const BenchObjective objective =
      BenchObjectiveOf(options.objectives.front(), config, options.per_device_train_batch_size,
                       options.max_length, options.share_prefix);
  const ActivationNeeds needs = NeedsOf(options, config, objective.batch);
  const WeightSizes weights = RandomModel::Plan(
      context, *backend, config, options.model.Formats().front(), WeightUse::kTraining);
  std::size_t bytes = weights.owned;
  bytes += adapter.bytes() + BytesOf(precision.wide, adapter.parameters().cols) +
           Optimizer::Bytes(ParseOptimizer(options.optim), adapter, backend->memory());
  for (const std::size_t of_pass : BytesOfPasses(config, adapter, precision, needs)) {
    bytes += of_pass;
  }
  return {.flops = FlopsOf(config, adapter, weights.quantized, objective.batch, needs),
          .precision = precision,
          .bytes = static_cast<double>(bytes)};
}

}  // namespace qlora::bench
