// PlanTraining: everything of a run that can be checked and computed before weights are read.
#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "checkpoint/resume_options.h"
#include "data/training_data.h"
#include "dist/agreement.h"
#include "dist/together.h"
#include "hub/hub_cache.h"
#include "io/folder_lock.h"
#include "io/json.h"
#include "machine/simd_target.h"
#include "plan/check_options.h"
#include "plan/continued_adapter.h"
#include "plan/disk_plan.h"
#include "plan/memory_plan.h"
#include "plan/run/prepared_run.h"
#include "plan/run/run_folder.h"
#include "plan/stage_plan.h"
#include "prompt/prompt_layout.h"
#include "qlora/communicator.h"

namespace qlora {

// Training, evaluating and saving follow one another, so the largest of them counts.
std::size_t MemoryPlan::peak() const { return std::max({train_peak, eval_peak, save_peak}); }

// A part that is held during the whole run: it counts in each peak.
void MemoryPlan::Add(MemoryPart part) {
  for (std::size_t* peak : {&train_peak, &eval_peak, &save_peak}) *peak += part.bytes;
  parts.push_back(std::move(part));
}

namespace {

// The options with those that an adapter decides. Checked first, because no file is opened for
// that. Evaluation files that lie beside the training data are found before, because options of
// evaluation need them. A model that is not there is named before anything of output_dir.
TrainOptions Checked(TrainOptions options) {
  options.data = WithFoundEvaluation(std::move(options.data));
  CheckOptions(options);
  if (options.data.dataset.empty()) ThrowInvalidInput("no dataset given: set dataset to a file");
  if (!options.adapter.empty()) options = WithAdapter(options);
  ResolveModelDir(options.model_name_or_path);
  return options;
}

// `data`, which an earlier plan of the same run has. Errors: InvalidInput where they were tokenized
// for another model.
std::shared_ptr<const RunData> SameData(std::shared_ptr<const RunData> data,
                                        const DataLimits& limits, const RunBase& base) {
  if (limits.vocab_size != data->limits.vocab_size ||
      limits.max_position_embeddings != data->limits.max_position_embeddings) {
    ThrowInvalidInput("{} is not a form of the model that the data were tokenized for",
                      base.model_dir.string());
  }
  return data;
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
  const std::set<std::string> own = {"model_name_or_path",
                                     "dataset",
                                     "eval_dataset",
                                     "chat_template",
                                     "adapter",
                                     "output_dir",
                                     "anchor",
                                     "overwrite_output_dir",
                                     "logging_dir",
                                     "dataset_prepared_path",
                                     "resume_from_checkpoint",
                                     "threads",
                                     "max_memory",
                                     "gradient_checkpointing",
                                     "recompute",
                                     "report_to"};
  const Json all = OptionsToJson(plan.options);
  for (const auto& [key, value] : all.items()) {
    if (!own.contains(key) && !recorded.contains(key)) {
      facts.emplace_back(key, value.get<std::string>());
    }
  }
  return facts;
}

std::vector<std::string> NotesOf(const PreparedRun& run, const RunFit& fit) {
  std::vector<std::string> notes;
  for (const auto* of : {&run.start.notes, &run.base.notes, &run.data->notes, &fit.notes}) {
    notes.insert(notes.end(), of->begin(), of->end());
  }
  std::erase(notes, "");
  return notes;
}

// Four values, each made of the ones before it; the cheap checks come first. Nothing is written.
// data: that of an earlier plan of the same run, or null.
TrainPlan Plan(Context& context, TrainOptions options, RunStart start,
               std::shared_ptr<const RunData> data, const ProgressFn& reading) {
  RunBase base = PlanBase(context, options, start);
  const DataLimits limits{base.config.vocab_size, base.config.max_position_embeddings,
                          ReadingLimitsOf(options)};
  data = data == nullptr ? OpenRunData(context, options, base.model_dir, limits, reading)
                         : SameData(std::move(data), limits, base);
  RunFit fit = FitRun(context, options, start, base, *data);

  const auto run = std::make_shared<const PreparedRun>(
      PreparedRun{std::move(start), std::move(base), std::move(data), std::move(fit.steps)});
  TrainPlan plan;
  plan.warnings = NotesOf(*run, fit);
  plan.options = std::move(options);
  plan.data = run->data->report;
  plan.memory = std::move(fit.memory);
  plan.disk = std::move(fit.disk);
  plan.ranks = std::move(fit.ranks);
  plan.total_steps = run->steps.schedule.total_steps;
  plan.warmup_steps = run->steps.schedule.warmup_steps;
  plan.resume = std::move(fit.resume);
  plan.prompt_layout = DescribeLayout(*run->data->recorded.record.layout);
  plan.example = run->data->example;
  plan.run = run;
  return plan;
}

}  // namespace

TrainPlan PlanTraining(Context& context, const TrainOptions& options, PlanPurpose purpose,
                       const ProgressFn& reading, int world_size) {
  Communicator& communicator = context.communicator();
  if (world_size == 0) world_size = communicator.size();
  const TrainOptions checked =
      MakeTogether(communicator, [&] { return WithRanks(Checked(options), world_size); });
  RunStart start = FindStart(communicator, checked, purpose);
  TrainPlan plan = MakeTogether(communicator, [&] {
    start.backends = BackendFactory::ForJob(context, checked.device);
    start.place = PlaceIn(communicator, checked, world_size);
    CheckEngine(communicator, checked.ddp_backend);
    TrainPlan made = Plan(context, checked, start, nullptr, reading);
    // Of ranks that are planned from outside, the one that needs most counts.
    for (int stage = 0; world_size != communicator.size() && stage < made.ranks.stages; ++stage) {
      start.place = RankPlaceOf(checked, stage, world_size);
      const TrainPlan other = Plan(context, checked, start, made.run->data, {});
      const IndexRange& layers = made.run->base.stages[stage];
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
  RunStart start = FindStart(communicator, options, plan.run->start.purpose);
  start.backends = plan.run->start.backends;
  start.place = plan.run->start.place;
  TrainPlan changed = MakeTogether(communicator, [&] {
    return Plan(context, Checked(options), std::move(start), plan.run->data, {});
  });
  AgreeOn(communicator, FactsOf(changed));
  return changed;
}

void CheckPlan(const TrainPlan& plan) {
  CheckShortage(plan.memory, plan.disk);
  if (plan.run->start.place.rank != 0 || plan.run->start.purpose == PlanPurpose::kReading) return;
  FolderLock lock;  // only tried
  TakeOutputDir(lock, plan.options);
}

}  // namespace qlora
