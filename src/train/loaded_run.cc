#include "train/loaded_run.h"

#include "adapter/lora_init.h"
#include "base/check.h"
#include "base/printable.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/resume_options.h"
#include "io/json.h"
#include "pass/pass_shape.h"
#include "plan/new_adapter.h"
#include "plan/run/prepared_run.h"
#include "plan/stage_plan.h"
#include "step/optimizer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// How the run loads its weights, with progress reported to `observer`, which the result refers to.
LoadOptions LoadReporting(const PreparedRun& run, TrainObserver& observer) {
  LoadOptions load = run.base.load;
  load.progress = [&](std::int64_t done, std::int64_t total) { observer.OnLoad(done, total); };
  return load;
}

// The adapter that the run starts from, as far as it does not depend on the weights of the base.
LoraAdapter MakeAdapter(const TrainOptions& options, const DecoderConfig& config, Memory& memory,
                        bool with_gradients) {
  LoraAdapter adapter = DescribeAdapter(options, config, memory);
  if (options.adapter.empty()) {
    adapter.Initialize(static_cast<std::uint64_t>(options.seed));
  } else {
    adapter.Read(options.adapter);
  }
  if (with_gradients) adapter.AllocateGradients();
  return adapter;
}

// Refuses a position that this run cannot be at, though its checkpoint names the same options.
void CheckFits(const TrainPosition& at, const TrainPlan& plan) {
  const fs::path where = *plan.run->start.checkpoint / kTrainerState;
  if (at.eval_due && !plan.data.held_out) {
    ThrowInvalidInput("{}: an evaluation is due, but this run has no evaluation data",
                      where.string());
  }
  // The constructor refuses a cursor beyond the data.
  const BatchStream stream(plan.run->data->train, plan.run->data->stream, at.cursor());
}

// The values of a new adapter that come from the weights.
void TakeValuesOfWeights(Context& context, const TrainPlan& plan, TrainObserver& observer,
                         LoadedRun& loaded, LoraAdapter& adapter) {
  const PreparedRun& run = *plan.run;
  const LoraInit init = ParseLoraInit(plan.options.init_lora_weights);
  if (init != LoraInit::kDefault) {
    InitializeFromWeights(*run.start.backends->Make(context, DType::kF32), init, loaded.weights,
                          run.steps.step.seed, LoadReporting(run, observer).progress, adapter);
  }
  InitializeMagnitudes(*loaded.backend, loaded.weights, adapter);
}

}  // namespace

std::unique_ptr<LoadedRun> LoadRun(Context& context, const TrainPlan& plan,
                                   TrainObserver& observer) {
  const PreparedRun& run = *plan.run;
  const RunBase& base = run.base;
  const RunSteps& steps = run.steps;
  const TrainOptions& options = plan.options;
  std::unique_ptr<Backend> backend = run.start.backends->Make(context, base.precision);
  LoraAdapter adapter = MakeAdapter(options, base.config, backend->memory(), true);
  // Gradients, activations and workspace are allocated before the weights are loaded: a run that
  // does not fit fails within seconds. The plan has the sizes.
  backend->Reserve(LimitsOf(base.config, adapter, steps.needs));
  GradientTree gradients(backend->memory(), run.start.place, PartsOfStages(adapter, base.stages),
                         adapter.gradients());
  std::vector<Arena> passes;
  for (const std::size_t bytes : BytesOfPasses(base.config, adapter, base.precision, steps.needs)) {
    passes.emplace_back(bytes, backend->memory());
  }
  DecoderWeights weights =
      LoadWeights(context, *backend, base.model_dir, base.config, LoadReporting(run, observer));
  if (options.adapter.empty()) adapter.InitializeModules(weights);
  Optimizer optimizer(OptimizerOf(options), adapter, plan.disk.folder);

  // The decoder refers to its parts, which therefore have their final place before it is made.
  auto loaded = std::make_unique<LoadedRun>(LoadedRun{std::move(backend),
                                                      std::move(adapter),
                                                      std::move(weights),
                                                      std::move(gradients),
                                                      std::move(optimizer),
                                                      context.communicator(),
                                                      std::move(passes),
                                                      0,
                                                      {},
                                                      nullptr});
  loaded->decoder = std::make_unique<Decoder>(*loaded->backend, base.config, loaded->weights,
                                              base.precision, steps.positions);
  return loaded;
}

TrainPosition StartTraining(Context& context, const TrainPlan& plan, TrainObserver& observer,
                            LoadedRun& loaded) {
  const PreparedRun& run = *plan.run;
  TrainPosition at;
  // Resuming needs no initial values. A continued adapter was read by MakeAdapter. A new one may
  // take its values from the weights; that is computed in float32, whatever the run computes in.
  if (run.start.checkpoint) {
    at = LoadCheckpoint(*run.start.checkpoint, RecordedOptions(plan, loaded.weights_hash),
                        loaded.adapter, loaded.optimizer);
    CheckFits(at, plan);
  } else if (plan.options.adapter.empty()) {
    TakeValuesOfWeights(context, plan, observer, loaded, loaded.adapter);
  }
  return at;
}

LoraAdapter StartAdapter(Context& context, const TrainPlan& plan, const TrainOptions& options,
                         LoadedRun& loaded, TrainObserver& observer) {
  LoraAdapter adapter =
      MakeAdapter(options, plan.run->base.config, loaded.backend->memory(), false);
  if (options.adapter.empty()) {
    adapter.InitializeModules(loaded.weights);
    TakeValuesOfWeights(context, plan, observer, loaded, adapter);
  }
  return adapter;
}

void ShareStart(LoadedRun& loaded) {
  loaded.gradients.ShareStages(loaded.communicator, loaded.decoder->backend().memory(),
                               loaded.adapter.parameters());
  RefreshNorms(*loaded.backend, loaded.weights, loaded.adapter);
}

}  // namespace qlora
