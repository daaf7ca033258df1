// Decisions: questions about a state that a model answers with a probability for each option.
// Model::Evaluate judges them, Model::Decide answers requests, Calibrate fits temperatures.
#ifndef QLORA_DECISION_H_
#define QLORA_DECISION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "qlora/data.h"
#include "qlora/options.h"

namespace qlora {

// By type, "noul", "choice", "score", or by type and number of options, "choice.3".
using TemperatureMap = std::map<std::string, double>;

// What the answer to a question counts for in the metrics, which are means over questions, but for
// ECE: the sum over all bins of |the sum of their gaps|, over the questions.
struct DecisionScore {
  std::int64_t record = 0;  // rows of one record are of one state
  bool is_right = false;
  double log_loss = 0;
  double brier = 0;
  std::int64_t bin = 0;  // of the confidence
  double gap = 0;        // of the confidence to the share of the answer in the target
};

// How answers to questions were. docs/decisions.md describes the metrics.
struct DecisionResult {
  std::int64_t questions = 0;
  // JSON, {"all": {"accuracy": ..., "ece": ...}, "noul": {...}, ...}, of probabilities after
  // temperature; metrics_before: without, "" where no temperature was used.
  std::string metrics;
  std::string metrics_before;
  TemperatureMap temperatures;  // that were used
  // Of all orders of options: the share of choices whose answer some order changes.
  std::optional<double> flip;
  // The mean probability that the labels have in the whole vocabulary; nothing for predictions of a
  // file.
  std::optional<double> label_mass;
  std::string predictions;            // JSON lines, one for each question
  std::vector<DecisionScore> scores;  // in the same order
  // Of the prompts; empty for predictions of a file.
  std::string decision_template;    // Jinja
  std::vector<std::string> labels;  // letters that are single tokens
};

// Judges a file of predictions, as `predictions` above. decision_temperature, ece_bins: as in
// EvalOptions; with temperatures, 1 too, probabilities are made of the logits of the file, else
// they are as the file has them. Errors: InvalidInput with file and line; for temperatures without
// logits.
DecisionResult EvaluatePredictions(const std::string& file, const std::string& decision_temperature,
                                   std::int64_t ece_bins);

// How the questions of a request become prompts.
struct DecideOptions {
  std::string decision_template;     // plain, chat, a Jinja file; "": as the model was trained
  std::string decision_temperature;  // noul=1.2,choice=0.9; "": those of the model

  void Declare(OptionTable& table);
  // Before a model is loaded. Errors: InvalidInput for temperatures that do not exist.
  void Check() const;
};

struct CalibrateOptions {
  std::vector<std::string> dataset;  // questions with answers that were not trained on
  ReadingFields reading;
  std::string from_predictions;     // a file of predictions in place of model and dataset
  std::int64_t min_questions = 10;  // of a type; the temperature of fewer is 1

  void Declare(OptionTable& table);
  // Before a model is loaded. Errors: InvalidInput for a number that is not above 0, and for a file
  // of predictions beside a dataset.
  void Check() const;
};

struct CalibrationResult {
  TemperatureMap temperatures;
  std::vector<std::string> notes;  // for people: each temperature with what it was fitted to
  std::string file;                // decision.json; "": there was no folder to write to
};

class Model;

// Fits one temperature for each type of question to the answers of a model, and writes them with
// its template to decision.json beside its adapter. Errors: InvalidInput as Model::Evaluate; for
// data that the adapter was trained on.
CalibrationResult Calibrate(
    Model& model, const CalibrateOptions& options,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});
// The same for options.from_predictions. adapter: the folder with decision.json, or "".
CalibrationResult CalibratePredictions(const CalibrateOptions& options, const std::string& adapter);

}  // namespace qlora

#endif  // QLORA_DECISION_H_
