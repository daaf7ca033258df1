// Calibrate: temperatures of a trained adapter, fitted to data that it was not trained on.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "checkpoint/run_info.h"
#include "data/data_options.h"
#include "decision/decision_file.h"
#include "inference/decision_evaluation.h"
#include "io/json.h"
#include "qlora/model.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// The files that the run in `adapter` trained on; empty where no run says so.
std::vector<fs::path> TrainedFiles(const fs::path& adapter) {
  const fs::path config = adapter / kTrainConfig;
  std::error_code ignored;
  if (!fs::exists(config, ignored) || !fs::exists(adapter / kRunInfo, ignored)) return {};
  const Json json = ReadJsonFile(config);
  const fs::path start = StartFolderOf(adapter);
  std::vector<fs::path> files;
  const Json* dataset = FindJson(json, "dataset", config.string());
  if (dataset == nullptr) return {};
  for (const Json& name : dataset->is_array() ? *dataset : Json::array({*dataset})) {
    if (name.is_string()) files.push_back(start / ParseDataSource(name.get<std::string>()).path);
  }
  return files;
}

// Answers to what was trained on are more certain than others, so that a temperature of them would
// make all answers too certain.
void CheckNotTrainedOn(const std::vector<std::string>& dataset, const fs::path& adapter) {
  const std::vector<fs::path> trained = TrainedFiles(adapter);
  for (const std::string& name : dataset) {
    const DataSource source = ParseDataSource(name);
    const bool same = std::any_of(trained.begin(), trained.end(), [&](const fs::path& file) {
      std::error_code ignored;
      return fs::equivalent(file, source.path, ignored);
    });
    if (!same) continue;
    ThrowInvalidInput(
        "dataset: {} was trained on ({}); temperatures need questions that the model has not "
        "learned the answers of",
        name, (adapter / kTrainConfig).string());
  }
}

CalibrationResult Fit(const std::vector<Prediction>& rows, std::int64_t min_questions) {
  const std::vector<FittedTemperature> fitted = FitTemperatures(rows, min_questions);
  CalibrationResult result;
  result.temperatures = ToUse(fitted).values();
  for (const FittedTemperature& one : fitted) result.notes.push_back(Describe(one));
  return result;
}

// Types of question that were not fitted keep the temperatures of the file before.
void Save(const fs::path& adapter, DecisionFile file, std::string fitted_on,
          CalibrationResult& result) {
  file.temperatures = {};
  file.fitted_on = std::move(fitted_on);
  if (const std::optional<DecisionFile> before = ReadDecisionFile(adapter)) {
    std::string earlier;  // data of temperatures that stay
    for (const auto& [name, value] : before->temperatures.values()) {
      if (result.temperatures.contains(name.substr(0, name.find('.')))) continue;
      file.temperatures.Set(name, value, "");
      earlier = before->fitted_on;
    }
    if (!earlier.empty() && earlier != file.fitted_on)
      file.fitted_on = earlier + ", " + file.fitted_on;
  }
  for (const auto& [name, value] : result.temperatures) file.temperatures.Set(name, value, "");
  WriteDecisionFile(adapter, file);
  result.file = (adapter / kDecisionFile).string();
}

}  // namespace

CalibrationResult Calibrate(Model& model, const CalibrateOptions& options,
                            const std::function<void(std::int64_t, std::int64_t)>& progress) {
  options.Check();
  const std::string adapter = model.adapter_folder();
  // Without the folder of one adapter nothing says what was trained on.
  if (!adapter.empty()) CheckNotTrainedOn(options.dataset, adapter);
  EvalOptions evaluation;
  evaluation.dataset = options.dataset;
  evaluation.reading = options.reading;
  // So that other records are refused where they are read.
  evaluation.reading.dataset_format = "decision";
  if (const auto file = adapter.empty() ? std::nullopt : ReadDecisionFile(adapter)) {
    evaluation.required_template = file->decision_template;
  }
  const EvalResult answers = model.Evaluate(evaluation, progress);
  const DecisionResult& decision = *answers.decision;
  CalibrationResult result =
      Fit(ParsePredictions(decision.predictions, "predictions"), options.min_questions);
  if (adapter.empty()) return result;
  std::string names;
  for (const std::string& name : options.dataset) names += (names.empty() ? "" : ", ") + name;
  Save(adapter, {.decision_template = decision.decision_template, .labels = decision.labels}, names,
       result);
  return result;
}

CalibrationResult CalibratePredictions(const CalibrateOptions& options,
                                       const std::string& adapter) {
  options.Check();
  std::optional<DecisionFile> file;
  if (!adapter.empty()) {
    file = ReadDecisionFile(adapter);
    if (!file) {
      ThrowInvalidInput(
          "{}: there is no {} with the template of the predictions; calibrate with the model and "
          "a dataset",
          adapter, kDecisionFile);
    }
  }
  CalibrationResult result = Fit(ReadPredictions(options.from_predictions), options.min_questions);
  if (file) Save(adapter, *std::move(file), options.from_predictions, result);
  return result;
}

}  // namespace qlora
