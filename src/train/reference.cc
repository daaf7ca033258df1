#include "train/reference.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/resume_options.h"
#include "dist/together.h"
#include "inference/answer_meter.h"
#include "io/json.h"
#include "machine/simd_target.h"
#include "plan/preference_options.h"
#include "plan/run/prepared_run.h"
#include "plan/visited_samples.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 34;

// Of the values of an adapter, of which its name says nothing; "" where there is none.
std::string HashOf(const std::string& adapter) {
  const fs::path file = fs::path(adapter) / "adapter_model.safetensors";
  if (adapter.empty() || !fs::exists(file)) return "";
  return fmt::format("{:016x}", HashBytes(ReadTextFile(file, kMostBytes)));
}

// What measures: a run that may resume from a checkpoint of these options measures the same.
Json ModelOf(const TrainPlan& plan, std::uint64_t weights) {
  Json model = RecordedOptions(plan, weights);
  model["kernels"] = NameOf(ActiveSimdTarget());
  model["values of adapter"] = HashOf(plan.options.adapter);
  model["values of reference"] = HashOf(plan.options.preference.reference);
  return model;
}

// The adapter of the reference. The run's own stands for itself before the first step; null: the
// base alone. other: keeps the adapter where it is another one.
const LoraAdapter* ReferenceAdapter(Context& context, const TrainPlan& plan,
                                    const TrainPosition& at, LoadedRun& loaded,
                                    TrainObserver& observer, std::optional<LoraAdapter>& other) {
  const std::string& name = plan.options.preference.reference;
  if (name == "base") return nullptr;
  if (name == "start" && at.step == 0) return &loaded.adapter;
  const TrainOptions options = OptionsOfReference(plan.options).value_or(plan.options);
  Together(loaded.communicator,
           [&] { other.emplace(StartAdapter(context, plan, options, loaded, observer)); });
  RefreshNorms(*loaded.backend, loaded.weights, *other);
  return &*other;
}

// What of some samples is not in the table yet.
VisitedSamples Missing(const Dataset& dataset, VisitedSamples all, const ReferenceTable& table) {
  std::erase_if(all.samples, [&](std::uint32_t i) { return table.has(dataset.key(i)); });
  std::erase_if(all.mismatched,
                [&](const MismatchedRow& row) { return table.has(KeyOf(dataset, row)); });
  return all;
}

// The part of a data set that is measured.
struct Part {
  const Dataset* dataset;
  VisitedSamples missing;
};

std::vector<Part> PartsOf(const TrainPlan& plan, const TrainPosition& at,
                          const ReferenceTable& table) {
  const RunData& data = *plan.run->data;
  const bool mismatches = plan.run->steps.step.objective->needs_kl();
  std::vector<Part> parts;
  const auto add = [&](const Dataset& dataset, VisitedSamples all) {
    VisitedSamples missing = Missing(dataset, std::move(all), table);
    if (missing.samples.empty() && missing.mismatched.empty()) return;
    parts.push_back({&dataset, std::move(missing)});
  };
  add(data.train,
      VisitedBy(plan.options, data, at.cursor(), plan.total_steps - at.step, mismatches));
  if (data.held_out) add(*data.held_out, VisitedByEvaluation(*data.held_out, mismatches));
  return parts;
}

// What an earlier part of the run has measured; rank 0 has the file, and decides.
ReferenceTable LoadTable(const TrainPlan& plan, Communicator& communicator, const Json& model,
                         TrainObserver& observer) {
  const fs::path file = fs::path(plan.options.output_dir) / kReferenceFile;
  const std::string of_root = MakeTogether(communicator, [&]() -> std::string {
    const bool has = communicator.is_root() && plan.run->start.checkpoint && fs::exists(file);
    if (!has) return "";
    std::string text = ReadTextFile(file, kMostBytes);
    const Json then = ReferenceTable::FromText(text, file.string()).second;
    const std::string differences = DifferencesOnResume(then, model);
    if (differences.empty()) return text;
    observer.OnWarning(fmt::format(
        "the log-probabilities of the reference in {} are of another model or other data, and are "
        "measured anew: {}",
        file.string(), differences));
    return "";
  });
  const std::string text = BroadcastLongText(communicator, of_root);
  if (text.empty()) return {};
  return MakeTogether(communicator,
                      [&] { return ReferenceTable::FromText(text, file.string()).first; });
}

}  // namespace

void MeasureReference(Context& context, const TrainPlan& plan, const TrainPosition& at,
                      LoadedRun& loaded, StopRules& stop, TrainObserver& observer) {
  const Objective& objective = *plan.run->steps.step.objective;
  if (!objective.needs_reference()) return;
  Communicator& communicator = loaded.communicator;
  const Json model = MakeTogether(communicator, [&] { return ModelOf(plan, loaded.weights_hash); });
  loaded.reference = LoadTable(plan, communicator, model, observer);
  const std::vector<Part> parts = PartsOf(plan, at, loaded.reference);
  if (parts.empty()) return;
  std::optional<LoraAdapter> other;
  const LoraAdapter* adapter = ReferenceAdapter(context, plan, at, loaded, observer, other);
  const AnswerMeter meter{communicator,
                          plan.run->start.place,
                          *loaded.decoder,
                          adapter,
                          loaded.passes.front(),
                          [&](std::int64_t done, std::int64_t total) {
                            observer.OnReference(done, total);
                            return !stop.AskHere();
                          }};
  for (const Part& part : parts) {
    if (meter.MeasureInto(loaded.reference, *part.dataset, part.missing, objective.ld_alpha(),
                          plan.run->data->stream.max_length)) {
      continue;
    }
    stop.Ask();  // so that all ranks know
    return;
  }
  Together(communicator, [&] {
    if (!communicator.is_root()) return;
    WriteTextFile(fs::path(plan.options.output_dir) / kReferenceFile,
                  loaded.reference.ToText(model));
  });
}

}  // namespace qlora
