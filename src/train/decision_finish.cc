#include "train/decision_finish.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "base/file.h"
#include "data/data_options.h"
#include "decision/decision_file.h"
#include "inference/asked_questions.h"
#include "inference/decision_evaluation.h"
#include "io/json.h"
#include "log/log_files.h"
#include "plan/run/prepared_run.h"
#include "qlora/model_options.h"

namespace qlora {
namespace {

// The data of temperatures, for decision.json.
std::string CalibrationName(const DataFields& fields) {
  if (!fields.calibration_dataset.empty()) {
    return fmt::format("{}", fmt::join(fields.calibration_dataset, ", "));
  }
  return fmt::format("calibration_size {} of {}", fields.calibration_size,
                     fmt::join(fields.dataset, ", "));
}

}  // namespace

void WriteDecisions(const TrainPlan& plan, const std::filesystem::path& dir,
                    const Temperatures& temperatures, const std::string& fitted_on) {
  const PromptLayout& layout = *plan.run->data->recorded.record.layout;
  if (layout.kind != PromptLayout::Kind::kDecision) return;
  const DecisionTokenizer tokenizer(plan.run->data->tokenizer);
  WriteDecisionFile(dir, {.decision_template = layout.prompt_template,
                          .temperatures = temperatures,
                          .labels = tokenizer.LabelTexts(),
                          .fitted_on = fitted_on});
}

DecisionFinish FinishDecisions(const TrainPlan& plan, LoadedRun& loaded) {
  const RunData& data = *plan.run->data;
  const bool decides = data.recorded.record.layout->kind == PromptLayout::Kind::kDecision;
  // The root has the adapter of the result, and with one stage all layers: it asks alone.
  if (!decides || !loaded.communicator.is_root() || plan.run->start.place.stages > 1) return {};
  const std::unique_ptr<Communicator> alone = MakeOneProcess();
  DecisionFinish finish;
  Temperatures temperatures;
  const DecisionOptions options =
      ToDataOptions(plan.options.data, DataPurpose::kEvaluation, data.limits).decision;
  const auto ask = [&](const Dataset& dataset, const auto& take) {
    const DecisionEncoder encoder(dataset.layout().prompt_template, options, data.tokenizer);
    AskedQuestions asked(encoder);
    AskAll(dataset, encoder, asked);
    take(asked, *asked.Run({*alone, RankPlace(), *loaded.decoder, &loaded.adapter,
                            loaded.passes.front()}));
  };
  if (data.calibration) {
    ask(*data.calibration, [&](const AskedQuestions& asked, const DatasetSums& sums) {
      const std::vector<FittedTemperature> fitted =
          FitTemperatures(asked.Answers(sums, {}).rows, CalibrateOptions().min_questions);
      temperatures = ToUse(fitted);
      for (const FittedTemperature& one : fitted) {
        finish.notes.push_back("temperature of " + Describe(one));
      }
    });
    WriteDecisions(plan, plan.options.output_dir, temperatures, CalibrationName(plan.options.data));
  }
  if (!data.held_out || !data.held_out->has_one_layout()) return finish;
  ask(*data.held_out, [&](const AskedQuestions& asked, const DatasetSums& sums) {
    finish.result = JudgeDecisions(asked, sums, temperatures, EvalOptions().ece_bins);
  });
  if (const std::string warning = WarnOfLabelMass(*finish.result); !warning.empty()) {
    finish.notes.insert(finish.notes.begin(), "warning: " + warning);
  }
  OrderedJson json = {{"decision", ParseOrderedJson(finish.result->metrics, "metrics")}};
  if (!finish.result->metrics_before.empty()) {
    json["decision_before_temperature"] =
        ParseOrderedJson(finish.result->metrics_before, "metrics");
  }
  WriteTextFile(std::filesystem::path(plan.options.output_dir) / kDecisionMetrics,
                FormatJson(json, 2) + '\n');
  return finish;
}

}  // namespace qlora
