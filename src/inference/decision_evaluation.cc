#include "inference/decision_evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "decision/decision_metrics.h"
#include "io/json.h"
#include "records/record_error.h"

namespace qlora {
namespace {

bool HasEffect(const Temperatures& temperatures) {
  const auto& values = temperatures.values();
  return std::any_of(values.begin(), values.end(), [](const auto& it) { return it.second != 1; });
}

std::string MetricsText(const std::vector<Prediction>& rows, std::int64_t bins,
                        std::optional<double> flip) {
  OrderedJson metrics = MetricsJson(rows, bins);
  if (flip) metrics["choice"]["flip"] = *flip;
  return FormatJson(metrics);
}

DecisionResult Judge(const std::vector<Prediction>& rows, const Temperatures& temperatures,
                     std::int64_t bins, std::optional<double> flip = {}) {
  DecisionResult result;
  result.questions = std::ssize(rows);
  result.flip = flip;
  result.metrics = MetricsText(rows, bins, flip);
  result.temperatures = temperatures.values();
  for (const Prediction& row : rows) result.predictions += PredictionLine(row);
  result.scores = ScoresOf(rows, bins);
  return result;
}

// Makes the probabilities anew, of the logits: those of a file may have a temperature already.
void UseTemperatures(const Temperatures& temperatures, std::vector<Prediction>& rows) {
  for (Prediction& row : rows) {
    if (row.logits.empty()) {
      ThrowInvalidInput(
          "decision_temperature: predictions without logits have no other temperature than their "
          "own; leave it out, or write them with logits (eval --predictions)");
    }
    row.probabilities =
        WithTemperature(row.logits, temperatures.Of(row.type, std::ssize(row.logits)));
  }
}

DecisionResult JudgeWith(const Temperatures& temperatures, std::vector<Prediction> rows,
                         std::int64_t bins) {
  UseTemperatures({}, rows);
  const std::string before = HasEffect(temperatures) ? MetricsText(rows, bins, {}) : "";
  UseTemperatures(temperatures, rows);
  DecisionResult result = Judge(rows, temperatures, bins);
  result.metrics_before = before;
  return result;
}

}  // namespace

std::vector<std::string> OptionsOfQuestions(const EvalOptions& options) {
  const EvalOptions usual;
  std::vector<std::string> given;
  if (options.keeps_predictions) given.emplace_back("predictions");
  if (options.ece_bins != usual.ece_bins) given.emplace_back("ece_bins");
  if (options.permutations != usual.permutations) given.emplace_back("permutations");
  if (options.decision_temperature != usual.decision_temperature) {
    given.emplace_back("decision_temperature");
  }
  return given;
}

DecisionResult JudgeDecisions(const AskedQuestions& asked, const DatasetSums& sums,
                              const Temperatures& temperatures, std::int64_t bins) {
  const DecisionAnswers answers = asked.Answers(sums, temperatures);
  DecisionResult result = Judge(answers.rows, temperatures, bins, answers.flip);
  if (HasEffect(temperatures)) {
    result.metrics_before = MetricsText(asked.Answers(sums, {}).rows, bins, answers.flip);
  }
  result.label_mass = answers.label_mass;
  return result;
}

std::vector<Prediction> ReadPredictions(const std::filesystem::path& file) {
  return ParsePredictions(ReadTextFile(file), file.string());
}

std::string WarnOfLabelMass(const DecisionResult& result) {
  constexpr double kLow = 0.5;
  if (!result.label_mass || *result.label_mass >= kLow) return "";
  return fmt::format(
      "the labels of the options have {:.1f} % of the probability of the next token: the model "
      "expects other text there, and another decision_template may suit it better",
      100 * *result.label_mass);
}

std::vector<Prediction> ParsePredictions(const std::string& text, const std::string& file) {
  std::vector<Prediction> rows;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (Trim(line).empty()) continue;
    const auto where = [&] { return fmt::format("{}:{}", file, number); };
    const OrderedJson json = ParseOrderedJson(line, where(), DuplicateKeys::kRefuse);
    NamePlace(where, [&] {
      if (!json.is_object()) ThrowInvalidInput("expected an object, found {}", ShortJson(json));
      rows.push_back(ReadPrediction(json));
    });
  }
  if (rows.empty()) ThrowInvalidInput("{}: there are no predictions", file);
  return rows;
}

DecisionResult EvaluatePredictions(const std::string& file, const std::string& decision_temperature,
                                   std::int64_t ece_bins) {
  CheckBins(ece_bins);
  std::vector<Prediction> rows = ReadPredictions(file);
  if (decision_temperature.empty()) return Judge(rows, {}, ece_bins);
  return JudgeWith(ParseTemperatures(decision_temperature, "decision_temperature"), std::move(rows),
                   ece_bins);
}

}  // namespace qlora
