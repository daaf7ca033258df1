// Train: a run from its plan to the saved adapter.
#include "qlora/train.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory_info.h"
#include "base/stopwatch.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "dist/together.h"
#include "io/folder_lock.h"
#include "log/run_log.h"
#include "machine/peak.h"
#include "model/model_fingerprint.h"
#include "plan/run/prepared_run.h"
#include "plan/run/run_folder.h"
#include "step/interval.h"
#include "step/optimizer.h"
#include "train/checkpoint_saver.h"
#include "train/decision_finish.h"
#include "train/divergence.h"
#include "train/evaluation.h"
#include "train/loaded_run.h"
#include "train/model_card.h"
#include "train/preference_watch.h"
#include "train/reference.h"
#include "train/samples.h"
#include "train/step_time.h"
#include "train/stop_rules.h"
#include "train/untrained_tokens.h"
#include "train/window.h"

namespace qlora {
namespace {

// Only a new run: one that resumes was warned. Tokens of a table that is trained as a whole learn.
void WarnOfTokens(const TrainPlan& plan, const LoadedRun& loaded, TrainObserver& observer) {
  const bool has_head = loaded.weights.head.rows() > 0;
  if (!loaded.communicator.is_root() || !has_head || plan.resume ||
      !plan.options.modules_to_save.empty()) {
    return;
  }
  const std::string warning = WarnOfUntrainedTokens(
      plan.run->data->train, loaded.decoder->backend().memory(), loaded.weights.head);
  if (!warning.empty()) observer.OnWarning(warning);
}

// Everything that a run does apart from its steps.
struct RunOutputs {
  RunOutputs(const TrainPlan& plan, LoadedRun& loaded, const TrainPosition& start,
             std::filesystem::path best_checkpoint, const FolderLock& lock, TrainObserver& observer)
      : stop(plan, loaded.communicator, observer),
        log(plan, start, loaded.communicator.is_root(), observer),
        evaluation(plan, loaded, stop, log),
        samples(plan, loaded, log),
        checkpoints(plan, loaded, std::move(best_checkpoint), lock, observer) {}

  StopRules stop;
  RunLog log;
  Evaluation evaluation;
  Samples samples;
  CheckpointSaver checkpoints;
};

// The update of the next step. Steps that were skipped do not count as updates.
UpdateArgs NextUpdate(const TrainPlan& plan, const TrainPosition& at) {
  UpdateArgs update = UpdateArgsOf(plan.options);
  update.learning_rate = plan.run->steps.schedule.At(at.step);
  update.step = at.step - at.skipped_steps + 1;
  return update;
}

// Passes over the data so far, with the fraction of the current one.
double EpochsDone(const BatchStream& stream, const TrainPosition& at) {
  return static_cast<double>(at.epoch) +
         static_cast<double>(at.epoch_batch) / static_cast<double>(stream.MicroBatchesIn(at.epoch));
}

// What the ranks say of a step that took `seconds` here, of which `traffic` for the others. Empty
// for a run of one process.
std::vector<RankReport> GatherReports(Communicator& communicator, double seconds, double traffic) {
  if (communicator.is_alone()) return {};
  const RankReport mine{seconds - traffic, traffic, ResidentBytes()};
  std::vector<RankReport> all(static_cast<std::size_t>(communicator.size()));
  communicator.Gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// Makes up for an evaluation that was interrupted, or evaluates the untrained model and writes its
// samples.
void BeforeTheFirstStep(const TrainPlan& plan, RunOutputs& out, TrainPosition& at) {
  const bool was_due = at.eval_due;
  at.eval_due = at.eval_due || out.evaluation.IsDueOnStart(at);
  const bool best = out.evaluation.Run(at);
  const bool keeps = best && plan.options.load_best_model_at_end;
  out.stop.AskToFinish();
  const bool ends = (was_due || out.stop.Finishes()) && out.stop.Ended(at);
  const bool stays = ends || out.stop.interrupted();
  if (keeps || stays) out.checkpoints.Save(at, stays);
  if (at.step == 0 && !out.stop.interrupted()) out.samples.Write(at);
}

// The method: each window of micro-batches is one step of the optimizer on the adapter. However the
// loop ends, its last step has a checkpoint, from which the run can be trained further.
void TrainingLoop(const TrainPlan& plan, const StepLimit& limit, LoadedRun& loaded, RunOutputs& out,
                  TrainPosition& at, TrainObserver& observer) {
  BatchStream stream(plan.run->data->train, plan.run->data->stream, at.cursor());
  const std::int64_t start_steps = StartSteps(plan.warmup_steps);
  const RunData& data = *plan.run->data;
  // One micro-batch of the anchors joins each step.
  std::optional<BatchStream> anchors;
  if (data.anchors) {
    anchors.emplace(*data.anchors, data.anchor_stream);
    anchors->Skip(at.step);
  }
  const WindowNeeds needs{data.train, *plan.run->steps.step.objective, loaded.reference,
                          data.stream.max_length, anchors ? &*anchors : nullptr};
  PreferenceWatch watch_of_preferences;
  while (!out.stop.Ended(at)) {
    const Stopwatch watch;
    const double traffic = loaded.communicator.seconds();
    const StepBatch batch = NextWindow(needs, plan.run->start.place, at, stream);
    const auto progress = [&](std::int64_t done) {
      out.log.ShowStepProgress(done, std::ssize(batch.micro_batches));
    };
    const StepResult result =
        TrainStep(loaded.model(progress), plan.run->steps.step, batch, NextUpdate(plan, at),
                  loaded.adapter, loaded.gradients, loaded.optimizer);
    at.Advance(batch, result, stream.cursor(), start_steps);
    watch_of_preferences.Add(result);
    const double seconds = watch.seconds();
    out.log.WriteStep(at, result,
                      {.epochs = EpochsDone(stream, at),
                       .seconds = seconds,
                       .limit_share = limit.ShareOf(result.totals, seconds),
                       .ranks = GatherReports(loaded.communicator, seconds,
                                              loaded.communicator.seconds() - traffic)});

    out.stop.AskAfter(at);
    const StepPlace place =
        PlaceOf(at.step, stream, at.cursor(), plan.options.gradient_accumulation_steps);
    at.eval_due = out.evaluation.IsDueAfter(place);
    // An evaluation of a run that is about to end would delay the interruption; it stays due and is
    // stored as such in the checkpoint.
    const bool best = !out.stop.BreaksOff(at) && out.evaluation.Run(at);
    if (out.samples.IsDue(at)) out.samples.Write(at);
    out.stop.AskToFinish();
    const bool last = out.stop.Ended(at) || out.stop.Diverged(at);
    const bool stays = last || out.checkpoints.IsDue(place, false);
    if (stays || out.checkpoints.IsDue(place, best)) out.checkpoints.Save(at, stays);
    out.stop.ThrowIfDiverged(at, result);
    out.stop.AskToFinish();  // the observer has heard of the checkpoint
  }
  for (const std::string& warning : watch_of_preferences.Warnings()) {
    if (loaded.communicator.is_root()) observer.OnWarning(warning);
  }
}

// HashWeights of the base. Each rank reads a part of its copy.
std::uint64_t HashBase(Context& context, const std::filesystem::path& model_dir) {
  Communicator& communicator = context.communicator();
  const std::uint64_t mine = MakeTogether(communicator, [&] {
    return HashWeights(context, model_dir, communicator.rank(), communicator.size());
  });
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.Gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
}

std::size_t LargestOfRanks(Communicator& communicator, std::size_t mine) {
  std::vector<std::size_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.Gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

// The result of a run for its caller. An interrupted run has its adapter in its last checkpoint
// only.
RunSummary Summarize(const TrainPlan& plan, LoadedRun& loaded, const RunOutputs& out,
                     std::int64_t first_step, const TrainPosition& at) {
  const std::string& dir = plan.options.output_dir;
  RunSummary summary;
  summary.steps = at.step;
  summary.resumed_step = first_step;
  summary.tokens = at.tokens;
  summary.seconds = out.log.seconds();
  summary.mean_loss = at.mean_loss();
  summary.peak_memory_bytes = LargestOfRanks(loaded.communicator, PeakResidentBytes());
  summary.interrupted = out.stop.interrupted();
  summary.stopped_early = !summary.interrupted && out.stop.StoppedEarly(at);
  // Rank 0 has the adapter of the result, which may be that of an earlier step.
  if (!summary.interrupted) {
    summary.divergence =
        BroadcastText(loaded.communicator, DescribeDivergence(plan.options, at, loaded));
  }
  summary.diverged = !summary.divergence.empty();
  summary.skipped_steps = at.skipped_steps;
  summary.best_step = at.best.step;
  summary.ranks = out.log.ranks();
  summary.adapter_dir = summary.interrupted ? CheckpointDir(dir, at.step).string() : dir;
  return summary;
}

// The part of a run that writes to output_dir, on rank 0.
RunSummary Run(Context& context, const TrainPlan& plan, LoadedRun& loaded, TrainPosition at,
               std::filesystem::path best_checkpoint, const FolderLock& lock,
               TrainObserver& observer) {
  const bool writes = loaded.communicator.is_root();
  if (writes) WriteRunInfo(plan);
  const std::int64_t first_step = at.step;
  RunOutputs out(plan, loaded, at, std::move(best_checkpoint), lock, observer);
  MeasureReference(context, plan, at, loaded, out.stop, observer);
  BeforeTheFirstStep(plan, out, at);
  const StepLimit limit(plan, LimitRates(plan.run->base.precision, [&](DType operands) {
                          return MeasurePeak(context, operands);
                        }));
  TrainingLoop(plan, limit, loaded, out, at, observer);
  const bool saves = writes && !out.stop.interrupted();
  if (saves) out.checkpoints.SaveResult(at);
  // The last that the ranks do together: nobody waits for what rank 0 does behind it, however long.
  RunSummary summary = Summarize(plan, loaded, out, first_step, at);
  if (!saves) return summary;
  summary.decisions = FinishDecisions(plan, loaded);
  WriteModelCard(plan, at);
  out.samples.Write(at);
  // The mark that the run is complete comes last, after everything that it vouches for.
  WriteRunInfo(plan, at.step);
  return summary;
}

// Refuses a folder that another run changed since the plan was made.
void CheckUnchanged(const TrainPlan& plan) {
  std::vector<std::string> ignored;
  const std::optional<std::filesystem::path>& planned = plan.run->start.checkpoint;
  const auto checkpoint = FindCheckpoint(plan.options, ignored, planned);
  CheckOutputDir(plan.options, checkpoint);
  if (checkpoint == planned) return;
  ThrowInvalidInput(
      "another run has written to output_dir {} since planning; run the command again",
      plan.options.output_dir);
}

}  // namespace

RunSummary Train(Context& context, const TrainPlan& plan, TrainObserver& observer) {
  // The lock is tried before the weights are loaded, where the folder exists already, and taken
  // once it has been made. CheckUnchanged finds changes that another run made in between.
  Communicator& communicator = context.communicator();
  FolderLock lock;
  Together(communicator, [&] {
    CheckPlan(plan);
    if (communicator.is_root()) TakeOutputDir(lock, plan.options);
  });
  const std::unique_ptr<LoadedRun> loaded =
      MakeTogether(communicator, [&] { return LoadRun(context, plan, observer); });
  loaded->weights_hash = HashBase(context, plan.run->base.model_dir);
  TrainPosition at =
      MakeTogether(communicator, [&] { return StartTraining(context, plan, observer, *loaded); });
  ShareStart(*loaded);
  CheckAdaptersAgree(*loaded);
  WarnOfTokens(plan, *loaded, observer);
  // The samples of a result are written after its checkpoint.
  if (plan.resume && plan.resume->is_complete) at.sampled_step = at.step;
  const auto& checkpoint = plan.run->start.checkpoint;
  std::filesystem::path best_checkpoint;
  Together(communicator, [&] {
    if (!communicator.is_root()) return;
    best_checkpoint = FindBestCheckpoint(plan, at);
    if (checkpoint) observer.OnResume(checkpoint->string(), at.step, plan.total_steps);
    MakeOutputDir(plan.options);
    TakeOutputDir(lock, plan.options);
    CheckUnchanged(plan);
    PrepareOutputDir(plan.options, checkpoint);
  });
  try {
    return Run(context, plan, *loaded, at, std::move(best_checkpoint), lock, observer);
  } catch (const Error& error) {
    // InvalidInput would say that nothing was written.
    if (error.code() != ErrorCode::kInvalidInput) throw;
    throw Error(ErrorCode::kRuntime, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(ErrorCode::kRuntime, error.what());
  }
}

}  // namespace qlora
