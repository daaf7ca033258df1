#include "train/session.h"

#include "base/check.h"
#include "base/printable.h"
#include "io/json.h"
#include "model/setup.h"
#include "train/adapter_options.h"
#include "train/checkpoint.h"
#include "train/checkpoint_dirs.h"
#include "train/lora_init.h"
#include "train/optimizer.h"
#include "train/prepared_run.h"
#include "train/resume_options.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// How the run loads its weights, with progress reported to `observer`, which the result refers to.
LoadOptions LoadReporting(const PreparedRun& run, TrainObserver& observer) {
  LoadOptions load = run.load;
  load.host_embedding = run.needs.host_embedding;
  load.progress = [&](std::int64_t done, std::int64_t total) { observer.OnLoad(done, total); };
  return load;
}

// The adapter that the run starts from, as far as it does not depend on the weights of the base.
LoraAdapter MakeAdapter(const TrainOptions& options, const DecoderConfig& config, Memory& memory) {
  LoraAdapter adapter = DescribeAdapter(options, config, memory);
  if (options.adapter.empty()) {
    adapter.Initialize(static_cast<std::uint64_t>(options.seed));
  } else {
    adapter.Read(options.adapter);
  }
  adapter.AllocateGradients();
  return adapter;
}

// Refuses a position that this run cannot be at, though its checkpoint names the same options.
void CheckFits(const TrainPosition& at, const TrainPlan& plan) {
  const fs::path where = *plan.run->checkpoint / kTrainerState;
  if (at.eval_due && !plan.data.held_out) {
    ThrowInvalidInput("{}: an evaluation is due, but this run has no evaluation data",
                      where.string());
  }
  // The constructor refuses a cursor beyond the data.
  const BatchStream stream(plan.run->data->train, plan.run->data->stream, at.cursor());
}

}  // namespace

std::unique_ptr<Session> OpenSession(Context& context, const TrainPlan& plan,
                                     TrainObserver& observer) {
  const PreparedRun& run = *plan.run;
  const TrainOptions& options = plan.options;
  std::unique_ptr<Backend> backend = run.make_backend(context, run.precision.activation);
  LoraAdapter adapter = MakeAdapter(options, run.config, backend->memory());
  // Gradients, activations and workspace are allocated before the weights are loaded: what does not
  // fit fails within seconds. The sizes are those of the plan.
  backend->SetDeterministic(options.deterministic);
  backend->Reserve(LimitsOf(*backend, run.config, adapter, run.needs));
  GradientTree gradients(backend->memory(), options.gradient_accumulation_steps,
                         adapter.gradients());
  PassMemory memory(backend->memory(),
                    BytesOfPasses(*backend, run.config, adapter, run.precision, run.needs));
  DecoderWeights weights =
      LoadWeights(context, *backend, run.model_dir, run.config, LoadReporting(run, observer));
  if (options.adapter.empty()) adapter.InitializeModules(weights);
  Optimizer optimizer(OptimizerOf(options), adapter, plan.disk.folder);
  if (const std::size_t unlocked = backend->memory().staging().Unlocked(); unlocked > 0) {
    observer.OnWarning(fmt::format(
        "the system does not lock {} of host memory for transfers, which therefore do not run "
        "beside the computation: the run is slower, its results are the same",
        FormatBytes(unlocked)));
  }

  // The decoder refers to its parts, which therefore have their final place before it is made.
  auto session = std::make_unique<Session>(
      Session{std::move(backend), std::move(adapter), std::move(weights), std::move(gradients),
              std::move(optimizer), std::move(memory), nullptr});
  session->decoder = std::make_unique<Decoder>(*session->backend, run.config, session->weights,
                                               run.precision, run.positions, run.needs.work_size);
  return session;
}

TrainPosition StartTraining(Context& context, const TrainPlan& plan, TrainObserver& observer,
                            Session& session) {
  const PreparedRun& run = *plan.run;
  TrainPosition at;
  // Resuming needs no initial values. A continued adapter was read by MakeAdapter. A new one may
  // take its values from the weights; that is computed in float32, whatever the run computes in.
  if (run.checkpoint) {
    at = LoadCheckpoint(*run.checkpoint, RecordedOptions(plan), session.adapter, session.optimizer);
    CheckFits(at, plan);
  } else if (plan.options.adapter.empty()) {
    const LoraInit init = ParseLoraInit(plan.options.init_lora_weights);
    if (init != LoraInit::kDefault) {
      InitializeFromWeights(*run.make_backend(context, DType::kF32), init, session.weights,
                            run.step.seed, LoadReporting(run, observer).progress, session.adapter);
    }
    InitializeMagnitudes(*session.backend, session.weights, session.adapter);
  }
  RefreshNorms(*session.backend, session.weights, session.adapter);
  return at;
}

}  // namespace qlora
