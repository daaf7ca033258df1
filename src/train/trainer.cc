// The training run, from options to the saved adapter.
#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/file.h"
#include "base/memory_info.h"
#include "base/stopwatch.h"
#include "model/evaluate.h"
#include "qlora/train.h"
#include "train/checkpoint.h"
#include "train/lora_init.h"
#include "train/recipe.h"
#include "train/resume.h"
#include "train/run_files.h"
#include "train/run_setup.h"
#include "train/train_log.h"

namespace qlora {
namespace {

class Run {
 public:
  Run(Context& context, const TrainOptions& options, TrainObserver& observer)
      : setup_(context, options, observer) {}

  RunSummary Go() {
    weights_ =
        LoadWeights(setup_.context, *setup_.backend, setup_.model_dir, setup_.config, setup_.load);
    if (setup_.options.adapter.empty()) setup_.adapter.InitializeModules(weights_);
    setup_.adapter.UseModules(weights_);
    const Stopwatch watch;
    const Decoder decoder(*setup_.backend, setup_.config, weights_, &setup_.adapter,
                          setup_.precision, setup_.Positions());
    setup_.samples.Reserve(decoder);
    recorded_ = RecordedOptions();
    optimizer_.emplace(OptimizerOf(setup_.options), setup_.adapter, setup_.plan.disk.folder);
    if (setup_.resume) {
      position_ = LoadCheckpoint(*setup_.resume, recorded_, setup_.adapter, *optimizer_);
    } else if (setup_.options.adapter.empty()) {
      InitializeFromWeights(setup_.context, ParseLoraInit(setup_.options.init_lora_weights),
                            weights_, setup_.step_options.seed, setup_.load.progress,
                            setup_.adapter);
      decoder.InitializeMagnitudes();
    }
    decoder.RefreshNorms();
    FindBestCheckpoint();
    if (setup_.resume) {
      setup_.observer.OnResume(setup_.resume->string(), position_.step,
                               setup_.schedule.total_steps);
    }
    PrepareRunDir(setup_.options.output_dir, setup_.options.overwrite_output_dir &&
                                                 !ResumesHere(setup_.options, setup_.resume));
    try {
      return Loop(decoder, watch);
    } catch (const Error& error) {
      // From here on something is written, which InvalidInput denies.
      if (error.code() != ErrorCode::kInvalidInput) throw;
      throw Error(ErrorCode::kRuntime, error.what());
    }
  }

 private:
  RunSummary Loop(const Decoder& decoder, const Stopwatch& watch) {
    WriteTextFile(std::filesystem::path(setup_.options.output_dir) / kTrainConfig,
                  OptionsToJson(setup_.options, false).dump(2) + "\n");
    WriteRunInfo();
    TrainLog log(setup_.options,
                 {position_.step, position_.eval_due ? position_.step - 1 : position_.step,
                  position_.sampled_step});
    BatchStream stream(*setup_.train, setup_.stream_options,
                       {position_.epoch, position_.epoch_batch});

    const std::int64_t first_step = position_.step;
    RunSummary summary;
    summary.resumed_step = first_step;
    double losses = 0;  // the sum over the steps that changed the adapter
    std::int64_t applied = 0;
    if (setup_.held_out && setup_.options.eval_on_start && first_step == 0) {
      position_.eval_due = true;
    }
    if (position_.eval_due) {
      const bool best = Evaluate(decoder, log);
      summary.interrupted = position_.eval_due;
      if (summary.interrupted || (best && setup_.options.load_best_model_at_end)) Save();
    }
    if (first_step == 0 && !summary.interrupted) WriteSamples(decoder, log);
    while (position_.step < setup_.schedule.total_steps && !StoppedEarly() &&
           !summary.interrupted) {
      const Stopwatch step_watch;
      const std::vector<Batch> window =
          stream.NextWindow(setup_.options.gradient_accumulation_steps);
      const double learning_rate = setup_.schedule.At(position_.step);
      const StepResult result = TrainStep(*setup_.backend, decoder, setup_.step_options, window,
                                          learning_rate, position_.step - position_.skipped_steps,
                                          position_.micro_step, setup_.activations, *optimizer_);
      const bool epoch_done = position_.epoch != stream.cursor().epoch;
      Advance(result, window.size(), stream.cursor());

      StepReport report = ReportOf(result, learning_rate);
      report.epoch = static_cast<double>(position_.epoch) +
                     static_cast<double>(position_.epoch_batch) /
                         static_cast<double>(stream.MicroBatchesIn(position_.epoch));
      report.tokens_per_second = static_cast<double>(result.rows) / step_watch.seconds();
      report.elapsed_seconds = watch.seconds();
      report.remaining_seconds = report.elapsed_seconds /
                                 static_cast<double>(position_.step - first_step) *
                                 static_cast<double>(setup_.schedule.total_steps - position_.step);
      log.Write(report);
      setup_.observer.OnStep(report);
      if (result.applied) {
        losses += result.loss;
        ++applied;
      }

      const bool last = position_.step == setup_.schedule.total_steps;
      summary.interrupted = setup_.observer.ShouldStop() && !last;
      const bool diverged = position_.skipped_in_a_row >= setup_.options.max_skipped_steps;
      position_.eval_due =
          setup_.held_out &&
          (last || (setup_.options.eval_steps > 0 ? position_.step % setup_.options.eval_steps == 0
                                                  : epoch_done));
      bool best = false;
      if (position_.eval_due && !summary.interrupted && !diverged) {
        best = Evaluate(decoder, log);
        summary.interrupted = position_.eval_due;
      }
      if (setup_.options.sample_steps > 0 && position_.step % setup_.options.sample_steps == 0 &&
          !last) {
        WriteSamples(decoder, log);
      }
      const bool due =
          setup_.options.save_steps > 0 && position_.step % setup_.options.save_steps == 0;
      if (due || summary.interrupted || diverged ||
          (best && setup_.options.load_best_model_at_end)) {
        Save();
      }
      if (diverged) ThrowDiverged(result);
    }
    summary.diverged = position_.skipped_in_a_row > 0;
    if (!summary.interrupted) {
      SaveResult();
      WriteSamples(decoder, log);
    }
    summary.adapter_dir = summary.interrupted ? setup_.options.output_dir +
                                                    fmt::format("/checkpoint-{}", position_.step)
                                              : setup_.options.output_dir;
    summary.steps = position_.step;
    if (applied > 0) summary.mean_loss = losses / static_cast<double>(applied);
    summary.tokens = position_.tokens;
    summary.skipped_steps = position_.skipped_steps;
    summary.best_step = position_.best.step;
    summary.stopped_early = !summary.interrupted && StoppedEarly();
    summary.seconds = watch.seconds();
    summary.peak_memory_bytes = PeakResidentBytes();
    return summary;
  }

  Json RecordedOptions() const {
    Json options = OptionsToJson(setup_.options, true);
    // "auto" may mean something else on another machine.
    options["compute_dtype"] = setup_.precision.activation == DType::kBF16 ? "bfloat16" : "float32";
    options["dataset_fingerprint"] = fmt::format("{:016x}", setup_.train->fingerprint());
    return options;
  }

  void Advance(const StepResult& result, std::size_t micro_batches, const DataCursor& cursor) {
    ++position_.step;
    position_.micro_step += micro_batches;
    position_.epoch = cursor.epoch;
    position_.epoch_batch = cursor.position;
    position_.tokens += result.supervised;
    position_.skipped_in_a_row = result.applied ? 0 : position_.skipped_in_a_row + 1;
    position_.skipped_steps += result.applied ? 0 : 1;
  }

  // What is known without clocks.
  StepReport ReportOf(const StepResult& result, double learning_rate) {
    StepReport report;
    report.step = position_.step;
    report.total_steps = setup_.schedule.total_steps;
    report.loss = result.loss;
    report.grad_norm = result.grad_norm;
    report.token_accuracy =
        static_cast<double>(result.hits) / static_cast<double>(result.supervised);
    report.learning_rate = learning_rate;
    report.tokens = result.supervised;
    report.memory_bytes = ResidentBytes();
    report.skipped = !result.applied;
    report.bad_tensor = result.bad_tensor;
    report.spike = result.applied && position_.losses.Add(result.loss);
    return report;
  }

  bool StoppedEarly() const {
    return setup_.options.early_stopping_patience > 0 &&
           position_.best.since_best >= setup_.options.early_stopping_patience;
  }

  [[noreturn]] void ThrowDiverged(const StepResult& result) const {
    ThrowRuntime(
        "a NaN or Inf in {} steps in a row, in the last of them first in {}; none of them changed "
        "the adapter, which is saved in checkpoint-{}. A lower learning_rate, a longer warm-up or "
        "a smaller max_grad_norm may help; so may a look at the data of these steps",
        position_.skipped_in_a_row, result.bad_tensor, position_.step);
  }

  void Save() {
    const std::filesystem::path dir = SaveCheckpoint(
        setup_.options.output_dir, setup_.adapter, setup_.form, *optimizer_, position_, recorded_);
    if (position_.best.step == position_.step) best_dir_ = dir;
    if (setup_.options.save_total_limit > 0) {
      RemoveOldCheckpoints(setup_.options.output_dir, setup_.options.save_total_limit,
                           position_.step,
                           setup_.options.load_best_model_at_end ? position_.best.step : -1);
    }
    setup_.observer.OnCheckpoint(dir.string());
  }

  // Whether the run ends with the adapter of an earlier step than its last.
  bool EndsWithBest() const {
    return setup_.options.load_best_model_at_end && position_.best.step >= 0 &&
           position_.best.step != position_.step;
  }

  // Where the checkpoint of the best evaluation lies, which may be another run's folder at first.
  void FindBestCheckpoint() {
    if (!setup_.options.load_best_model_at_end || position_.best.step < 0) return;
    best_dir_ = CheckpointDir(setup_.resume->parent_path(), position_.best.step);
    try {
      CheckCheckpoint(best_dir_);
    } catch (const Error& error) {
      ThrowInvalidInput(
          "load_best_model_at_end: the best evaluation so far was at step {}, whose checkpoint {} "
          "cannot be read: {}. Resume from an earlier checkpoint, or set load_best_model_at_end "
          "false",
          position_.best.step, best_dir_.string(), error.what());
    }
  }

  // The adapter of the last step, then that of the best evaluation in its place, so that a failure
  // leaves one.
  void SaveResult() {
    setup_.adapter.Save(setup_.options.output_dir);
    SaveBaseForm(setup_.options.output_dir, setup_.form);
    if (!EndsWithBest()) return;
    setup_.adapter.Read(best_dir_);
    setup_.adapter.Save(setup_.options.output_dir);
  }

  // Once for each step.
  void WriteSamples(const Decoder& decoder, TrainLog& log) {
    if (position_.sampled_step == position_.step) return;
    position_.sampled_step = position_.step;
    for (std::size_t i = 0; i < setup_.options.sample_prompts.size(); ++i) {
      const SampleReport report{
          position_.step, setup_.options.sample_prompts[i],
          setup_.samples.Write(i, decoder, setup_.tokenizer, setup_.activations)};
      log.Write(report);
      setup_.observer.OnSample(report);
    }
  }

  // What a reader of the logs wants to know besides.
  void WriteRunInfo() const {
    OrderedJson parts = OrderedJson::object();
    for (const MemoryPart& part : setup_.memory_plan.parts) parts[part.name] = part.bytes;
    OrderedJson info = {{"total_steps", setup_.schedule.total_steps},
                        {"memory", {{"parts", parts}, {"peak", setup_.memory_plan.peak()}}},
                        {"data", ReportToJson(setup_.train->report())}};
    if (setup_.held_out) info["eval_data"] = ReportToJson(setup_.held_out->report());
    WriteTextFile(std::filesystem::path(setup_.options.output_dir) / kRunInfo,
                  info.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  }

  // True for the best so far. An interrupted one is due again when the run goes on.
  bool Evaluate(const Decoder& decoder, TrainLog& log) {
    const std::optional<EvalResult> found =
        EvaluateDataset(decoder, *setup_.held_out, false, setup_.activations,
                        [this] { return setup_.observer.ShouldStop(); });
    if (!found) return false;
    const EvalResult& result = *found;
    EvalReport report;
    report.loss = result.loss;
    report.perplexity = result.perplexity;
    report.token_accuracy = result.token_accuracy;
    report.tokens = result.tokens;
    report.seconds = result.seconds;
    if (position_.step > 0) {
      const bool accuracy = setup_.options.metric_for_best_model == "token_accuracy";
      report.best =
          position_.best.Add(position_.step, accuracy ? report.token_accuracy : report.loss,
                             accuracy, setup_.options.early_stopping_threshold);
    }
    position_.eval_due = false;
    log.Write(position_.step, report);
    setup_.observer.OnEval(position_.step, report);
    return report.best;
  }

  RunSetup setup_;
  std::optional<Optimizer> optimizer_;
  DecoderWeights weights_;
  Json recorded_;
  std::filesystem::path best_dir_;  // with load_best_model_at_end
  TrainPosition position_;
};

}  // namespace

RunSummary Train(Context& context, const TrainOptions& options, TrainObserver& observer) {
  return Run(context, options, observer).Go();
}

RunPlan PlanTraining(Context& context, const TrainOptions& options, TrainObserver& observer) {
  return RunSetup(context, options, observer).plan;
}

}  // namespace qlora
