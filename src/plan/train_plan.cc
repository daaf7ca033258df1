// PlanTraining: everything of a run that can be checked and computed before weights are read.
#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/model_fingerprint.h"
#include "checkpoint/resume_options.h"
#include "checkpoint/resume_point.h"
#include "data/lost_text.h"
#include "data/prompt_example.h"
#include "data/recorded_prompts.h"
#include "data/sample_display.h"
#include "dist/agreement.h"
#include "dist/together.h"
#include "hub/hub_cache.h"
#include "io/json.h"
#include "machine/simd_target.h"
#include "model/lora_init.h"
#include "model/shared_options.h"
#include "plan/check_options.h"
#include "plan/continued_adapter.h"
#include "plan/disk_plan.h"
#include "plan/fit_memory.h"
#include "plan/memory_plan.h"
#include "plan/new_adapter.h"
#include "plan/prepared_run.h"
#include "plan/run_folder.h"
#include "plan/sample_prompts.h"
#include "plan/stage_plan.h"
#include "qlora/communicator.h"
#include "step/optimizer.h"
#include "step/schedule.h"
#include "tokenizer/adapter_files.h"

namespace qlora {

// Training, evaluating and saving follow one another, so the largest of them counts.
std::size_t MemoryPlan::peak() const { return std::max({train_peak, eval_peak, save_peak}); }

std::size_t MemoryPlan::bytes(MemoryPlace of) const {
  if (of == place) return peak();
  return of == MemoryPlace::kHost ? host : 0;
}

// A part that is held during the whole run: it counts in each peak. When the run computes in host
// memory, `place` is kHost and `host` stays 0.
void MemoryPlan::Add(MemoryPart part) {
  if (part.place == place) {
    for (std::size_t* peak : {&train_peak, &eval_peak, &save_peak}) *peak += part.bytes;
  } else {
    host += part.bytes;
  }
  parts.push_back(std::move(part));
}

namespace {

// Random numbers of a micro-batch are keyed by its number in so many bits (pass/linear_group.cc).
constexpr std::int64_t kMostMicroBatches = std::int64_t{1} << 25;

constexpr double kHighRate = 0.5;  // no optimizer here trains an adapter well with such a rate

// The options with those that an adapter decides. Checked first, because no file is opened for
// that.
// Evaluation files that lie beside the training data are found before, because options of
// evaluation need them.
TrainOptions Checked(TrainOptions options) {
  options.data = WithFoundEvaluation(std::move(options.data));
  CheckOptions(options);
  if (options.data.dataset.empty()) ThrowInvalidInput("no dataset given: set dataset to a file");
  return options.adapter.empty() ? options : WithAdapter(options);
}

// The options that all steps share, in the types of the step.
StepOptions StepOptionsOf(const TrainOptions& options, const ActivationNeeds& needs) {
  StepOptions step;
  step.rates = GroupRatesOf(options);
  step.max_grad_norm = options.max_grad_norm;
  step.seed = static_cast<std::uint64_t>(options.seed);
  step.neftune_alpha = options.neftune_noise_alpha;
  step.label_smoothing = options.label_smoothing_factor;
  step.recompute = needs.recompute;
  return step;
}

// `data` where an earlier plan of the same run has them, else the data that the options name.
std::shared_ptr<const RunData> DataOf(Context& context, const TrainOptions& options,
                                      const PreparedRun& run, std::shared_ptr<const RunData> data,
                                      const ProgressFn& reading) {
  const DataLimits limits{run.config.vocab_size, run.config.max_position_embeddings,
                          ReadingMemory(options)};
  if (data == nullptr) return OpenRunData(context, options, run.model_dir, limits, reading);
  if (limits.vocab_size != data->limits.vocab_size ||
      limits.max_position_embeddings != data->limits.max_position_embeddings) {
    ThrowInvalidInput("{} is not a form of the model that the data were tokenized for",
                      run.model_dir.string());
  }
  return data;
}

// ---- Ranks.

// Where a run starts: the checkpoint that it resumes from, which rank 0 finds for all.
struct StartPoint {
  std::optional<std::filesystem::path> checkpoint;
  std::shared_ptr<const FolderCopy> copy;
  std::vector<std::string> warnings;
};

StartPoint FindStart(Communicator& communicator, const TrainOptions& options, PlanPurpose purpose) {
  StartPoint start;
  Together(communicator, [&] {
    if (!communicator.is_root()) return;
    start.checkpoint = FindCheckpoint(options, start.warnings);
    if (purpose == PlanPurpose::kReading) {
      start.warnings.push_back(WarnOfOutputDir(options, start.checkpoint));
    } else {
      CheckOutputDir(options, start.checkpoint);
    }
  });
  if (communicator.is_alone()) return start;
  const std::string found =
      BroadcastText(communicator, start.checkpoint ? start.checkpoint->string() : "");
  if (found.empty()) return start;
  start.copy = ShareFolder(communicator, found, kTrainerState);
  start.checkpoint = start.copy->path();
  return start;
}

RankPlace PlaceIn(const Communicator& communicator, const TrainOptions& options, int world_size) {
  RankPlace place = RankPlaceOf(options, communicator.rank(), world_size);
  if (world_size == communicator.size()) place.of_host = communicator.local_size();
  return place;
}

// Refuses ranks that met over another engine than the one that was asked for.
void CheckEngine(const Communicator& communicator, const std::string& ddp_backend) {
  if (communicator.is_alone() || ddp_backend == "auto") return;
  if (ddp_backend == communicator.engine()) return;
  ThrowInvalidInput(
      "ddp_backend {}: the ranks met over {}; mpirun starts ranks of mpi, torchrun and the "
      "variable MASTER_ADDR ranks of tcp",
      ddp_backend, communicator.engine());
}

// What must be the same on all ranks. Paths may differ: fingerprints tell whether files do.
Facts FactsOf(const TrainPlan& plan) {
  Facts facts = {
      {"instruction set of the kernels (QLORA_TARGET chooses one)", NameOf(ActiveSimdTarget())}};
  const Json recorded = RecordedOptions(plan);
  for (const auto& [key, value] : recorded.items()) {
    if (key != "model_name_or_path") facts.emplace_back(key, value.get<std::string>());
  }
  // Options that say how a rank does its part, and places of files.
  const std::set<std::string> own = {
      "model_name_or_path",     "dataset",     "eval_dataset",
      "chat_template",          "adapter",     "output_dir",
      "overwrite_output_dir",   "logging_dir", "dataset_prepared_path",
      "resume_from_checkpoint", "threads",     "max_memory",
      "gradient_checkpointing", "recompute",   "report_to"};
  const Json all = OptionsToJson(plan.options);
  for (const auto& [key, value] : all.items()) {
    if (!own.contains(key) && !recorded.contains(key)) {
      facts.emplace_back(key, value.get<std::string>());
    }
  }
  return facts;
}

// ---- The plan.

// The cheap checks come first: folder, configuration, adapter, data, sizes. Nothing is written. Of
// the weights are read the first bytes of each tensor, for the fingerprint, and embedding and head
// where both are stored though they are tied. data: that of an earlier plan of the same run, or
// null.
TrainPlan Plan(Context& context, TrainOptions options, PlanPurpose purpose,
               BackendFactory::Ptr backends, const StartPoint& start, const RankPlace& place,
               std::shared_ptr<const RunData> data, const ProgressFn& reading) {
  TrainPlan plan;
  plan.warnings = start.warnings;
  auto run = std::make_shared<PreparedRun>();
  run->purpose = purpose;
  run->backends = std::move(backends);
  run->checkpoint = start.checkpoint;
  run->copy = start.copy;
  run->place = place;

  run->model_dir = ResolveModelDir(options.model_name_or_path);
  run->config = LoadDecoderConfig(run->model_dir);
  run->stages = PlanStages(run->config, options);
  run->config.stage = run->stages[place.stage()];
  run->precision = ParsePrecision(options.compute_dtype, *run->backends);
  run->base = {options.model_name_or_path, options.load_in_4bit, options.quantization};
  // For its sizes; LoadRun makes the adapter that is trained.
  LoraAdapter adapter = DescribeAdapter(options, run->config, HostMemory());

  data = DataOf(context, options, *run, std::move(data), reading);
  const BatchStream stream(data->train, data->stream);
  RecordedPrompts recorded = RecordPrompts(data->train, options.data, data->tokenizer,
                                           data->chat.get(), ChatTemplateDir(options.adapter));
  run->base.prompts = std::move(recorded.record);
  run->base.chat_template = std::move(recorded.chat_template);
  if (options.learning_rate >= kHighRate) {
    plan.warnings.push_back(
        fmt::format("learning_rate {} is far above the usual 1e-5 to 1e-3; the run may diverge",
                    options.learning_rate));
  }
  if (!data->warning.empty()) plan.warnings.push_back(data->warning);
  plan.warnings.push_back(data->tokenizer_note);
  for (std::string& warning : WarnOfFields(data->train.report())) {
    plan.warnings.push_back(std::move(warning));
  }
  plan.data = ReportTrainingData(data->train, data->held_out, data->stream);
  plan.prompt_layout = DescribeLayout(*run->base.prompts.layout);
  if (run->base.prompts.layout == data->train.layout()) {
    plan.example = FindPromptExample(data->train, data->tokenizer);
  }
  if (!data->train.has_one_layout()) {
    plan.warnings.push_back(fmt::format(
        "the data files are laid out in different ways; the layout of most samples is recorded "
        "with the adapter: {}",
        plan.prompt_layout));
  }
  run->prompts = EncodePrompts(options, *run->base.prompts.layout, *data, run->config);

  // The sizes of the weights, from the headers of the checkpoint, and with them the memory of the
  // run.
  run->load = LoadOptionsOf(run->base);
  const std::unique_ptr<Backend> backend = run->backends->Make(context, run->precision.activation);
  const WeightSizes weights =
      PlanWeights(context, *backend, run->model_dir, run->config, run->load);
  plan.warnings.insert(plan.warnings.end(), weights.notes.begin(), weights.notes.end());
  run->model_fingerprint = ModelFingerprint(run->model_dir);
  run->base.model_fingerprint = fmt::format("{:016x}", run->model_fingerprint);
  AdoptStoredForm(run->base, weights);
  if (!options.load_in_4bit && !weights.block_formats.empty()) {
    plan.warnings.push_back(NoteIdle4bit(weights));
  }
  CheckLoraInit(ParseLoraInit(options.init_lora_weights), adapter,
                run->base.load_in_4bit && !weights.stored_4bit);

  const auto parts = PartsOfStages(adapter, run->stages);
  const DataExtent extent = ExtentOf(*data);
  FittedRun fitted = FitMemory({options, extent, run->prompts, run->config, run->precision, adapter,
                                weights, *backend, place, parts[place.stage()]});
  plan.memory = std::move(fitted.plan);
  plan.ranks = PlanRanks(place, run->stages, adapter, run->config, fitted.needs.train_rows,
                         run->precision.wide);
  run->needs = std::move(fitted.needs);
  run->positions = fitted.positions;

  // The number of steps, which the disk plan and a resumed run depend on.
  run->schedule = ScheduleOf(options, stream);
  run->step = StepOptionsOf(options, run->needs);
  plan.total_steps = run->schedule.total_steps;
  const bool draws = options.lora_dropout > 0 || options.neftune_noise_alpha > 0;
  if (draws && plan.total_steps > kMostMicroBatches / options.gradient_accumulation_steps) {
    ThrowInvalidInput(
        "{} steps of {} micro-batches: with lora_dropout or neftune_noise_alpha a run has at most "
        "{} micro-batches; set a larger per_device_train_batch_size",
        plan.total_steps, options.gradient_accumulation_steps, kMostMicroBatches);
  }
  plan.warmup_steps = run->schedule.warmup_steps;
  if (run->checkpoint) {
    plan.resume = FindResumePoint(*run->checkpoint, options, plan.total_steps);
  }
  plan.warnings.push_back(WarnOfRanks(adapter));
  plan.warnings.push_back(WarnOfHeldOutNames(plan.data.train));
  plan.warnings.push_back(WarnOfSharedSamples(plan.data));
  if (!options.data.eval_dataset.empty()) {
    plan.warnings.push_back(WarnOfLostRecords(*plan.data.held_out, "evaluation records"));
  }
  plan.warnings.push_back(WarnOfLostRecords(plan.data.train));
  plan.warnings.push_back(WarnOfLostText(data->train, data->tokenizer));
  plan.warnings.push_back(WarnOfWarmup(options, run->schedule));
  plan.warnings.push_back(WarnOfScalarKernels());
  plan.warnings.push_back(WarnOfNoCheckpoint(options, run->schedule));
  std::erase(plan.warnings, "");
  const std::size_t tokenizer = TokenizerFileBytes(run->model_dir, options.adapter);
  plan.disk = PlanDisk(options, adapter, backend->memory(),
                       {tokenizer, data->tokenizer_note.empty() ? 0 : tokenizer}, plan.total_steps,
                       StepsOfEpoch(options, stream, 0));
  // Rank 0 alone writes, but for moments in a file.
  if (place.rank != 0 && !OptimizerOf(options).paged) plan.disk.shortage.clear();
  // A damaged adapter is found now, not when the weights have been loaded.
  if (!options.adapter.empty() && plan.memory.shortage.empty()) adapter.Read(options.adapter);
  plan.options = std::move(options);
  run->data = std::move(data);
  plan.run = std::move(run);
  if (plan.run->checkpoint) {
    // ChangeBase may still replace the base, which is compared again when the run starts.
    CheckOptionsOnResume(*plan.run->checkpoint, RecordedOptions(plan), /*base_may_change=*/true);
    if (SplitsStepsAgain(*plan.run->checkpoint, RecordedOptions(plan))) {
      plan.warnings.push_back(
          "steps are split into other micro-batches than before: a step has the same samples, but "
          "sums are rounded in another order, and dropout and NEFTune draw other numbers");
    }
  }
  return plan;
}

}  // namespace

TrainPlan PlanTraining(Context& context, const TrainOptions& options, PlanPurpose purpose,
                       const ProgressFn& reading, int world_size) {
  Communicator& communicator = context.communicator();
  if (world_size == 0) world_size = communicator.size();
  const TrainOptions checked =
      MakeTogether(communicator, [&] { return WithRanks(Checked(options), world_size); });
  const StartPoint start = FindStart(communicator, checked, purpose);
  TrainPlan plan = MakeTogether(communicator, [&] {
    const BackendFactory::Ptr backends = BackendFactory::ForJob(context, checked.device);
    CheckEngine(communicator, checked.ddp_backend);
    TrainPlan made = Plan(context, checked, purpose, backends, start,
                          PlaceIn(communicator, checked, world_size), nullptr, reading);
    // Of ranks that are planned from outside, the one that needs most counts.
    for (int stage = 0; world_size != communicator.size() && stage < made.ranks.stages; ++stage) {
      const TrainPlan other = Plan(context, checked, purpose, backends, start,
                                   RankPlaceOf(checked, stage, world_size), made.run->data, {});
      const IndexRange& layers = made.run->stages[stage];
      made.ranks.of_stages.push_back({layers.begin, layers.size(), other.memory.peak()});
      if (other.memory.peak() > made.memory.peak()) made.memory = other.memory;
    }
    return made;
  });
  AgreeOn(communicator, FactsOf(plan));
  return plan;
}

TrainPlan ChangeBase(Context& context, const TrainPlan& plan,
                     const std::string& model_name_or_path) {
  Communicator& communicator = context.communicator();
  TrainOptions options = plan.options;
  options.model_name_or_path = model_name_or_path;
  const StartPoint start = FindStart(communicator, options, plan.run->purpose);
  TrainPlan changed = MakeTogether(communicator, [&] {
    return Plan(context, Checked(options), plan.run->purpose, plan.run->backends, start,
                plan.run->place, plan.run->data, {});
  });
  AgreeOn(communicator, FactsOf(changed));
  return changed;
}

void CheckPlan(const TrainPlan& plan) {
  CheckShortage(plan.memory, plan.disk);
  if (plan.run->place.rank != 0 || plan.run->purpose == PlanPurpose::kReading) return;
  FolderLock lock;  // only tried
  TakeOutputDir(lock, plan.options);
}

}  // namespace qlora
