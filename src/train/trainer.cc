// The training run, from options to the saved adapter.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/file.h"
#include "base/memory_info.h"
#include "model/evaluate.h"
#include "model/hub.h"
#include "model/lora_init.h"
#include "model/setup.h"
#include "qlora/train.h"
#include "text/batch_stream.h"
#include "text/chat_template.h"
#include "text/data_setup.h"
#include "text/data_view.h"
#include "text/dataset.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"
#include "train/checkpoint.h"
#include "train/disk_plan.h"
#include "train/memory_plan.h"
#include "train/recipe.h"
#include "train/run_files.h"
#include "train/samples.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/train_log.h"

namespace qlora {
namespace {

using Clock = std::chrono::steady_clock;

// The share of free memory that a run leaves to others unless max_memory says what it may use.
constexpr double kSpareMemory = 0.1;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Run {
 public:
  Run(Context& context, const TrainOptions& options, TrainObserver& observer)
      : context_(context),
        options_(options),
        observer_(observer),
        resume_(FindCheckpoint(options, observer)),
        model_dir_(CheckedModelDir(options, resume_)),
        config_(LoadDecoderConfig(model_dir_)),
        tokenizer_(Tokenizer::Load(model_dir_, options.adapter)),
        precision_(ParsePrecision(options.compute_dtype)),
        form_{options.model_name_or_path, options.load_in_4bit, options.quantization},
        adapter_(DescribeAdapter()) {
    OpenData();
    samples_ = Samples(options.sample_prompts, options.sample_max_new_tokens, tokenizer_, config_);
    backend_ = MakeCpuBackend(context, precision_.activation);
    Plan();
    PrepareSchedule();
    plan_ = {schedule_.total_steps, schedule_.warmup_steps,
             PlanDisk(options, adapter_, schedule_.total_steps)};
    CheckDisk(plan_.disk);
    FillAdapter();
  }

  const RunPlan& plan() const { return plan_; }

  RunSummary Go() {
    weights_ = LoadWeights(context_, model_dir_, config_, load_);
    if (options_.adapter.empty()) adapter_.InitializeModules(weights_);
    adapter_.UseModules(weights_);
    const Clock::time_point start = Clock::now();
    const Decoder decoder(*backend_, config_, weights_, &adapter_, precision_, Positions());
    samples_.Reserve(decoder);
    recorded_ = RecordedOptions();
    optimizer_.emplace(OptimizerOf(options_), adapter_, plan_.disk.folder);
    if (resume_) {
      position_ = LoadCheckpoint(*resume_, recorded_, adapter_, *optimizer_);
    } else if (options_.adapter.empty()) {
      InitializeFromWeights(context_, ParseLoraInit(options_.init_lora_weights), weights_,
                            step_options_.seed, adapter_);
      decoder.InitializeMagnitudes();
    }
    decoder.RefreshNorms();
    CheckBestCheckpoint();
    PrepareRunDir(options_.output_dir,
                  options_.overwrite_output_dir && !ResumesHere(options_, resume_));
    try {
      return Loop(decoder, start);
    } catch (const Error& error) {
      // From here on something is written, which InvalidInput denies.
      if (error.code() != ErrorCode::kInvalidInput) throw;
      throw Error(ErrorCode::kRuntime, error.what());
    }
  }

 private:
  RunSummary Loop(const Decoder& decoder, Clock::time_point start) {
    WriteTextFile(std::filesystem::path(options_.output_dir) / kTrainConfig,
                  OptionsToJson(options_, false).dump(2) + "\n");
    WriteRunInfo();
    TrainLog log(options_, position_.step);
    BatchStream stream(*train_, stream_options_, {position_.epoch, position_.epoch_batch});

    if (held_out_ && options_.eval_on_start && position_.step == 0) Evaluate(decoder, log);
    if (position_.eval_due) Evaluate(decoder, log);
    if (position_.step == 0) WriteSamples(decoder, log);
    const std::int64_t first_step = position_.step;
    RunSummary summary;
    summary.resumed_step = first_step;
    while (position_.step < schedule_.total_steps && !StoppedEarly() && !summary.interrupted) {
      const Clock::time_point step_start = Clock::now();
      const std::vector<Batch> window = stream.NextWindow(options_.gradient_accumulation_steps);
      const double learning_rate = schedule_.At(position_.step);
      const StepResult result = TrainStep(*backend_, decoder, step_options_, window, learning_rate,
                                          position_.step - position_.skipped_steps,
                                          position_.micro_step, activations_, *optimizer_);
      const bool epoch_done = position_.epoch != stream.cursor().epoch;
      Advance(result, window.size(), stream.cursor());

      StepReport report = ReportOf(result, learning_rate);
      report.epoch = static_cast<double>(position_.epoch) +
                     static_cast<double>(position_.epoch_batch) /
                         static_cast<double>(stream.MicroBatchesIn(position_.epoch));
      report.tokens_per_second = static_cast<double>(result.rows) / SecondsSince(step_start);
      report.elapsed_seconds = SecondsSince(start);
      report.remaining_seconds = report.elapsed_seconds /
                                 static_cast<double>(position_.step - first_step) *
                                 static_cast<double>(schedule_.total_steps - position_.step);
      log.Write(report);
      observer_.OnStep(report);
      summary.last_loss = result.loss;

      const bool last = position_.step == schedule_.total_steps;
      summary.interrupted = observer_.ShouldStop() && !last;
      const bool diverged = position_.skipped_in_a_row >= options_.max_skipped_steps;
      position_.eval_due =
          held_out_ && (last || (options_.eval_steps > 0 ? position_.step % options_.eval_steps == 0
                                                         : epoch_done));
      bool best = false;
      if (position_.eval_due && !summary.interrupted && !diverged) best = Evaluate(decoder, log);
      if (options_.sample_steps > 0 && position_.step % options_.sample_steps == 0 && !last) {
        WriteSamples(decoder, log);
      }
      const bool due = options_.save_steps > 0 && position_.step % options_.save_steps == 0;
      if (due || summary.interrupted || diverged || (best && options_.load_best_model_at_end)) {
        Save();
      }
      if (diverged) ThrowDiverged(result);
    }
    if (!summary.interrupted) {
      SaveResult();
      WriteSamples(decoder, log);
    }
    summary.adapter_dir = summary.interrupted
                              ? options_.output_dir + fmt::format("/checkpoint-{}", position_.step)
                              : options_.output_dir;
    summary.steps = position_.step;
    summary.tokens = position_.tokens;
    summary.skipped_steps = position_.skipped_steps;
    summary.best_step = position_.best.step;
    summary.stopped_early = !summary.interrupted && StoppedEarly();
    summary.seconds = SecondsSince(start);
    summary.peak_memory_bytes = PeakResidentBytes();
    return summary;
  }

  static bool WantsNewest(const TrainOptions& options) {
    return options.resume_from_checkpoint == "auto" || options.resume_from_checkpoint == "true";
  }

  // The checkpoint to go on from. "auto" without one starts anew.
  static std::optional<std::filesystem::path> FindCheckpoint(const TrainOptions& options,
                                                             TrainObserver& observer) {
    CheckOptions(options);
    const std::string& wanted = options.resume_from_checkpoint;
    if (wanted.empty() || wanted == "false") return {};
    if (!WantsNewest(options)) {
      if (!std::filesystem::exists(std::filesystem::path(wanted) / "trainer_state.json")) {
        ThrowInvalidInput("resume_from_checkpoint {}: no complete checkpoint there", wanted);
      }
      return wanted;
    }
    const std::vector<std::filesystem::path> all = ListCheckpoints(options.output_dir);
    for (auto checkpoint = all.rbegin(); checkpoint != all.rend(); ++checkpoint) {
      try {
        CheckCheckpoint(*checkpoint);
        return *checkpoint;
      } catch (const Error& error) {
        observer.OnWarning(
            fmt::format("{} is damaged and passed over: {}", checkpoint->string(), error.what()));
      }
    }
    return {};
  }

  // Whether the run goes on in its own folder: a checkpoint of another one starts a new run.
  static bool ResumesHere(const TrainOptions& options,
                          const std::optional<std::filesystem::path>& checkpoint) {
    std::error_code ignored;
    return checkpoint &&
           std::filesystem::equivalent(
               std::filesystem::absolute(*checkpoint / "").parent_path().parent_path(),
               options.output_dir, ignored);
  }

  static std::filesystem::path CheckedModelDir(
      const TrainOptions& options, const std::optional<std::filesystem::path>& checkpoint) {
    const bool newest = WantsNewest(options);
    const bool finished = HoldsAdapter(options.output_dir);
    if (newest && !checkpoint && finished && !options.overwrite_output_dir) {
      ThrowInvalidInput(
          "output_dir {0} holds a finished adapter and no checkpoint to go on from; to train it "
          "further, give --adapter {0} and another output_dir",
          options.output_dir);
    }
    // A run that was killed before its first checkpoint leaves logs, and "auto" starts it anew.
    CheckRunDir(options.output_dir, options.overwrite_output_dir,
                newest || ResumesHere(options, checkpoint));
    return ResolveModelDir(options.model_name_or_path);
  }

  // Without memory: it is planned first.
  LoraAdapter DescribeAdapter() const {
    if (!options_.adapter.empty()) {
      CheckAgainstAdapter(options_);
      return LoraAdapter(OpenAdapter(options_.adapter).config, config_);
    }
    LoraAdapter adapter(ToAdapterConfig(options_, config_), config_);
    if (DoublesRank(ParseLoraInit(options_.init_lora_weights))) adapter.FreezeSecondHalf();
    return adapter;
  }

  void FillAdapter() {
    if (options_.adapter.empty()) {
      adapter_.Initialize(static_cast<std::uint64_t>(options_.seed));
    } else {
      adapter_.Read(options_.adapter);
    }
    adapter_.AllocateGradients();
  }

  void OpenData() {
    const DataFields& fields = options_.data;
    chat_ = LoadChatTemplate(fields.chat, tokenizer_, ChatClock::kFixed);
    const bool kept =
        std::filesystem::exists(std::filesystem::path(options_.adapter) / kChatTemplateFile);
    if (!fields.chat.chat_template.empty() || (!options_.adapter.empty() && kept)) {
      form_.chat_template = chat_->text();
    }
    const DataLimits limits{config_.vocab_size, config_.max_position_embeddings};
    const std::string warning = WarnOfLength(fields.reading, limits);
    if (!warning.empty()) observer_.OnWarning(warning);
    TrainingData data = OpenTrainingData(fields, limits, static_cast<std::uint64_t>(options_.seed),
                                         tokenizer_, chat_.get(), &context_);
    stream_options_.per_device_train_batch_size = options_.per_device_train_batch_size;
    stream_options_.max_length = ResolveMaxLength(fields.reading, limits);
    stream_options_.packing = fields.packing;
    stream_options_.shuffle = fields.shuffle;
    stream_options_.seed = static_cast<std::uint64_t>(options_.seed);
    observer_.OnData(RenderTrainingData(data, stream_options_));
    train_ = std::move(data.train);
    held_out_ = std::move(data.held_out);
  }

  void Plan() {
    const BatchStream stream(*train_, stream_options_);
    ActivationNeeds needs{
        stream.MaxRows(), std::max(held_out_ ? EvalRows(*held_out_) : 0, samples_.rows()), {}};
    load_.load_in_4bit = form_.load_in_4bit;
    load_.quantize = ParseQuantizeOptions(form_.quantization);
    load_.progress = [this](std::int64_t done, std::int64_t total) {
      observer_.OnLoad(done, total);
    };
    const WeightSizes sizes = PlanWeights(context_, model_dir_, config_, load_);
    AdoptStoredForm(form_, sizes);
    const auto plan_for = [&](const std::vector<Recompute>& recompute) {
      needs.recompute = recompute;
      MemoryPlan plan = PlanMemory(*backend_, config_, adapter_, precision_, sizes, needs,
                                   Optimizer::Bytes(OptimizerOf(options_), adapter_));
      plan.Add({"rotary tables", Decoder::RopeBytes(config_, precision_, Positions())});
      if (!samples_.empty()) {
        plan.Add({"keys and values of samples", samples_.CacheBytes(config_, precision_)});
      }
      return plan;
    };
    const auto peak_for = [&](const std::vector<Recompute>& recompute) {
      return plan_for(recompute).peak();
    };
    std::vector<MemoryPart> ladder;
    for (const Recompute level :
         {Recompute::kNone, Recompute::kAttention, Recompute::kMlp, Recompute::kLayer}) {
      ladder.push_back({NameOf(level), peak_for(AllLayers(level))});
    }
    if (!options_.gradient_checkpointing) {
      step_options_.recompute = AllLayers(Recompute::kNone);
    } else if (options_.recompute != "auto") {
      step_options_.recompute = AllLayers(ParseRecompute(options_.recompute));
    } else {
      step_options_.recompute = ChooseRecompute(
          config_.num_hidden_layers, MemoryLimit(options_.max_memory, kSpareMemory), peak_for);
    }
    memory_plan_ = plan_for(step_options_.recompute);
    memory_plan_.recompute = DescribeRecompute(step_options_.recompute);
    memory_plan_.ladder = std::move(ladder);
    observer_.OnPlan(memory_plan_);
    CheckMemory(memory_plan_, options_.max_memory);
    const std::int64_t rows = std::max(needs.train_rows, needs.eval_rows);
    backend_->Reserve(LimitsOf(config_, &adapter_, rows, HeadChunkRows(config_, rows)));
    activations_ = Arena(ActivationBytes(config_, adapter_, precision_, needs));
  }

  // Of the longest sequence.
  std::int64_t Positions() const {
    return std::max<std::int64_t>({train_->report().longest,
                                   held_out_ ? held_out_->report().longest : 0,
                                   samples_.capacity()});
  }

  std::vector<Recompute> AllLayers(Recompute level) const {
    return std::vector<Recompute>(static_cast<std::size_t>(config_.num_hidden_layers), level);
  }

  void PrepareSchedule() {
    schedule_.type = ParseSchedulerType(options_.lr_scheduler_type);
    schedule_.learning_rate = options_.learning_rate;
    schedule_.total_steps = options_.max_steps > 0 ? options_.max_steps : StepsOfEpochs();
    if (schedule_.type != SchedulerType::kConstant) {
      schedule_.warmup_steps =
          options_.warmup_steps > 0
              ? options_.warmup_steps
              : static_cast<std::int64_t>(
                    std::ceil(options_.warmup_ratio * static_cast<double>(schedule_.total_steps)));
    }
    schedule_.cycles = options_.lr_scheduler_cycles;
    step_options_.update = UpdateArgsOf(options_);
    step_options_.rates = GroupRatesOf(options_);
    step_options_.neftune_alpha = options_.neftune_noise_alpha;
    step_options_.max_grad_norm = options_.max_grad_norm;
    step_options_.seed = static_cast<std::uint64_t>(options_.seed);
  }

  std::int64_t StepsOfEpochs() const {
    const BatchStream stream(*train_, stream_options_);
    const std::int64_t window = options_.gradient_accumulation_steps;
    const auto steps_in = [&](std::int64_t epoch) {
      return (stream.MicroBatchesIn(epoch) + window - 1) / window;
    };
    const auto whole = static_cast<std::int64_t>(options_.num_train_epochs);
    std::int64_t steps = 0;
    for (std::int64_t epoch = 0; epoch < whole; ++epoch) steps += steps_in(epoch);
    const double rest = options_.num_train_epochs - static_cast<double>(whole);
    if (rest > 0) {
      steps += static_cast<std::int64_t>(std::ceil(rest * static_cast<double>(steps_in(whole))));
    }
    return steps;
  }

  Json RecordedOptions() const {
    Json options = OptionsToJson(options_, true);
    options["dataset_fingerprint"] = fmt::format("{:016x}", train_->fingerprint());
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
    report.total_steps = schedule_.total_steps;
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
    return options_.early_stopping_patience > 0 &&
           position_.best.since_best >= options_.early_stopping_patience;
  }

  [[noreturn]] void ThrowDiverged(const StepResult& result) const {
    ThrowRuntime(
        "a NaN or Inf in {} steps in a row, in the last of them first in {}; none of them changed "
        "the adapter, which is saved in checkpoint-{}. A lower learning_rate, a longer warm-up or "
        "a smaller max_grad_norm may help; so may a look at the data of these steps",
        position_.skipped_in_a_row, result.bad_tensor, position_.step);
  }

  void Save() {
    const std::filesystem::path dir =
        SaveCheckpoint(options_.output_dir, adapter_, form_, *optimizer_, position_, recorded_);
    if (options_.save_total_limit > 0) {
      RemoveOldCheckpoints(options_.output_dir, options_.save_total_limit, position_.step,
                           options_.load_best_model_at_end ? position_.best.step : -1);
    }
    observer_.OnCheckpoint(dir.string());
  }

  // Whether the run ends with the adapter of an earlier step than its last.
  bool EndsWithBest() const {
    return options_.load_best_model_at_end && position_.best.step >= 0 &&
           position_.best.step != position_.step;
  }

  void CheckBestCheckpoint() const {
    if (!EndsWithBest()) return;
    const std::filesystem::path best = CheckpointDir(options_.output_dir, position_.best.step);
    try {
      CheckCheckpoint(best);
    } catch (const Error& error) {
      ThrowInvalidInput(
          "load_best_model_at_end: the best evaluation so far was at step {}, whose checkpoint {} "
          "cannot be read: {}. Resume from an earlier checkpoint, or set load_best_model_at_end "
          "false",
          position_.best.step, best.string(), error.what());
    }
  }

  // The adapter of the last step, then that of the best evaluation in its place, so that a failure
  // leaves one.
  void SaveResult() {
    adapter_.Save(options_.output_dir);
    SaveBaseForm(options_.output_dir, form_);
    if (!EndsWithBest()) return;
    adapter_.Read(CheckpointDir(options_.output_dir, position_.best.step));
    adapter_.Save(options_.output_dir);
  }

  void WriteSamples(const Decoder& decoder, TrainLog& log) {
    for (std::size_t i = 0; i < options_.sample_prompts.size(); ++i) {
      const SampleReport report{position_.step, options_.sample_prompts[i],
                                samples_.Write(i, decoder, tokenizer_, activations_)};
      log.Write(report);
      observer_.OnSample(report);
    }
  }

  // What a reader of the logs wants to know besides.
  void WriteRunInfo() const {
    OrderedJson parts = OrderedJson::object();
    for (const MemoryPart& part : memory_plan_.parts) parts[part.name] = part.bytes;
    OrderedJson info = {{"total_steps", schedule_.total_steps},
                        {"memory", {{"parts", parts}, {"peak", memory_plan_.peak()}}},
                        {"data", ReportToJson(train_->report())}};
    if (held_out_) info["eval_data"] = ReportToJson(held_out_->report());
    WriteTextFile(std::filesystem::path(options_.output_dir) / kRunInfo,
                  info.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  }

  // True for the best so far.
  bool Evaluate(const Decoder& decoder, TrainLog& log) {
    const EvalResult result = EvaluateDataset(decoder, *held_out_, false, activations_);
    EvalReport report;
    report.loss = result.loss;
    report.perplexity = result.perplexity;
    report.token_accuracy = result.token_accuracy;
    report.tokens = result.tokens;
    report.seconds = result.seconds;
    if (position_.step > 0) {
      const bool accuracy = options_.metric_for_best_model == "token_accuracy";
      report.best =
          position_.best.Add(position_.step, accuracy ? report.token_accuracy : report.loss,
                             accuracy, options_.early_stopping_threshold);
    }
    position_.eval_due = false;
    log.Write(position_.step, report);
    observer_.OnEval(position_.step, report);
    return report.best;
  }

  Context& context_;
  const TrainOptions& options_;
  TrainObserver& observer_;
  std::optional<std::filesystem::path> resume_;
  std::filesystem::path model_dir_;
  DecoderConfig config_;
  Tokenizer tokenizer_;
  std::unique_ptr<ChatTemplate> chat_;
  Precision precision_;
  BaseForm form_;
  LoraAdapter adapter_;
  std::unique_ptr<Backend> backend_;
  std::optional<Dataset> train_;
  std::optional<Dataset> held_out_;
  StreamOptions stream_options_;
  StepOptions step_options_;
  LoadOptions load_;
  Schedule schedule_;
  RunPlan plan_;
  Samples samples_;
  Arena activations_;
  MemoryPlan memory_plan_;
  std::optional<Optimizer> optimizer_;
  DecoderWeights weights_;
  Json recorded_;
  TrainPosition position_;
};

}  // namespace

RunSummary Train(Context& context, const TrainOptions& options, TrainObserver& observer) {
  return Run(context, options, observer).Go();
}

RunPlan PlanTraining(Context& context, const TrainOptions& options, TrainObserver& observer) {
  return Run(context, options, observer).plan();
}

}  // namespace qlora
