#include "inference/preference_evaluation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "adapter/combined_adapter.h"
#include "base/check.h"
#include "hub/hub_adapter.h"
#include "inference/decision_evaluation.h"
#include "inference/model_passes.h"
#include "model/checkpoint.h"
#include "objective/preference.h"
#include "pass/dora.h"
#include "preference/preference_fields.h"

namespace qlora {
namespace {

[[noreturn]] void RefuseIdle(const IdleOption& idle) {
  ThrowInvalidInput("{} would have no effect: {}", idle.name, idle.reason);
}

// Takes out means over answers that the data do not have. Returns what it took out and why, or "".
std::string TakeOutMissing(std::vector<MetricValue>& metrics) {
  std::vector<std::string> names;
  std::erase_if(metrics, [&](const MetricValue& metric) {
    if (std::isnan(metric.value)) names.push_back(metric.name);
    return std::isnan(metric.value);
  });
  if (names.empty()) return "";
  const bool label = std::ranges::count(names, "rewards/chosen") > 0;
  return fmt::format("no answer of the data has the label {}, so that there is no {}", label,
                     fmt::join(names, ", "));
}

std::vector<Dataset> FilesOf(const Dataset& dataset) {
  const std::vector<FileReport>& files = dataset.report().files;
  std::vector<Dataset> parts;
  for (std::int64_t f = 0; f < std::ssize(files); ++f) {
    if (files[f].samples > 0) parts.push_back(dataset.OfFile(f));
  }
  return parts;
}

}  // namespace

std::optional<PreferenceLossOptions> PreferenceLossOf(const EvalOptions& options) {
  PreferenceFields fields = options.preference;
  if (options.reference == "none") fields.reference = "none";
  for (const IdleOption& idle : IdlePreferenceFields(fields, options.label_smoothing_factor)) {
    RefuseIdle(idle);
  }
  const bool asks = !fields.preference_loss.empty();
  constexpr const char* kNoLoss = "there is no preference_loss; leave it out";
  if (!asks && options.label_smoothing_factor != 0) RefuseIdle({"label_smoothing_factor", kNoLoss});
  if (!asks && options.reference != "base") RefuseIdle({"reference", kNoLoss});
  if (!asks) return {};
  const PreferenceLossOptions loss = PreferenceLossOf(fields, options.label_smoothing_factor);
  CheckPreferenceReading(options.reading);
  for (const std::string& option : OptionsOfQuestions(options)) {
    RefuseIdle({option, "preferences ask no questions; leave it out"});
  }
  if (options.reference != "base" && loss.family() == LossFamily::kOwn) {
    RefuseIdle({"reference", "this preference_loss has none; leave it out"});
  }
  if (options.reference == "start") {
    ThrowInvalidInput(
        "reference: start is the model before the first step of a run; expected base, or the "
        "folder of the adapter that the run began with");
  }
  return loss;
}

std::optional<LoraAdapter> LoadReference(LoadedModel& model, const PreferenceLossOptions& loss,
                                         const EvalOptions& options) {
  if (!loss.needs_reference()) return {};
  const auto refuse_replaced = [](const LoraAdapter& adapter) {
    if (adapter.replaced() == nullptr) return;
    ThrowInvalidInput(
        "preference_loss: an adapter brings '{}', which takes the place of the base's when it is "
        "loaded, so that model and reference cannot be measured beside each other; choose a loss "
        "without a reference (orpo, simpo, cpo)",
        adapter.replaced()->begin()->first);
  };
  if (model.adapter) refuse_replaced(*model.adapter);
  if (options.reference == "base") {
    if (model.adapter) return {};
    ThrowInvalidInput(
        "reference: there is no adapter, so that the base would be compared with itself; name an "
        "adapter with --adapter");
  }
  std::error_code ignored;
  const bool is_itself =
      model.options.adapter == std::vector{options.reference} ||
      std::filesystem::equivalent(options.reference, model.adapter_folder, ignored);
  if (is_itself && !options.without_adapter) {
    ThrowInvalidInput(
        "reference: {} is the adapter that is measured, which would be compared with itself; "
        "expected base, or the folder of the adapter that the run began with",
        options.reference);
  }
  LoraAdapter reference = LoadAdapters(ResolveAdapters({options.reference}, 0),
                                       LoadDecoderConfig(model.dir), model.backend->memory());
  refuse_replaced(reference);
  reference.FoldTables(model.weights);
  RefreshNorms(*model.backend, model.weights, reference);
  return reference;
}

EvalResult EvaluatePreferences(
    LoadedModel& model, const Dataset& dataset, const PreferenceLossOptions& loss,
    const LoraAdapter* reference, const EvalOptions& options, std::int64_t max_length,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  const PreferenceObjective objective(loss);
  const DataReport& report = dataset.report();
  const std::int64_t mismatched = loss.needs_kl() ? LongestMismatched(dataset, max_length) : 0;
  const auto passes_with = [&](const LoraAdapter* adapter) {
    return ModelPasses(model, adapter, std::max<std::int64_t>(report.longest, mismatched),
                       std::max<std::int64_t>(report.largest, mismatched), report.unfolding,
                       progress);
  };
  ReferenceTable table;
  if (loss.needs_reference()) {
    passes_with(reference).meter().MeasureInto(
        table, dataset, VisitedByEvaluation(dataset, loss.needs_kl()), loss.ld_alpha, max_length);
  }
  const ModelPasses passes = passes_with(model.AdapterFor(options.without_adapter));
  const AnswerMeter& meter = passes.meter();
  const double kl = loss.needs_kl() ? *meter.MeasureKl(dataset, table, max_length) : 0;
  DatasetSums all;
  for (const Dataset& part : FilesOf(dataset)) {
    all.Add(*meter.Evaluate(objective, part, table, kl, options.per_token));
  }
  const std::vector<double> values = objective.Values(all.sums, all.totals);
  EvalResult result;
  result.loss = values.front();
  result.metrics = MetricsOf(objective, values, /*of_steps=*/false);
  result.warning = TakeOutMissing(result.metrics);
  result.tokens = all.totals.supervised;
  result.sequences = dataset.size();
  result.seconds = all.seconds;
  result.logprobs = std::move(all.logprobs);
  result.token_ids = std::move(all.token_ids);
  return result;
}

}  // namespace qlora
