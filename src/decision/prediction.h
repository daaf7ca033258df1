// What a model answered to a question whose answer is known: a row for metrics and calibration.
#ifndef QLORA_DECISION_PREDICTION_H_
#define QLORA_DECISION_PREDICTION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "decision/question.h"
#include "io/json_fwd.h"

namespace qlora {

struct Prediction {
  std::int64_t record = 0;  // rows of one record are of one state
  std::string id;           // of the question
  QuestionType type = QuestionType::kNoul;
  std::vector<std::string> keys;      // (n) of the options
  std::vector<double> logits;         // (n) of their labels; empty where nobody kept them
  std::vector<double> probabilities;  // (n) sum to 1
  std::vector<double> target;         // (n) sum to 1
};

// A line of a file of predictions: {"record", "id", "type", "keys", "logits", "probabilities",
// "target"}.
std::string PredictionLine(const Prediction& prediction);
// Errors: InvalidInput that begins with the field: a field that is missing, lists of other lengths,
// numbers that are not finite, shares that do not sum to 1.
Prediction ReadPrediction(const OrderedJson& line);

// softmax(logits / temperature).
std::vector<double> WithTemperature(const std::vector<double>& logits, double temperature);

}  // namespace qlora

#endif  // QLORA_DECISION_PREDICTION_H_
