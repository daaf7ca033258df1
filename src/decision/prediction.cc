#include "decision/prediction.h"

#include <cmath>

#include "base/check.h"
#include "decision/decision_loss.h"
#include "io/json.h"

namespace qlora {
namespace {

const OrderedJson& Field(const OrderedJson& line, const char* name) {
  const OrderedJson* value = FindField(line, name);
  if (value == nullptr) {
    ThrowInvalidInput(
        "{}: missing; a line of predictions has record, id, type, keys, logits, "
        "probabilities and target",
        name);
  }
  return *value;
}

std::vector<double> Numbers(const OrderedJson& list, const char* name, std::size_t count) {
  std::vector<double> numbers;
  for (const OrderedJson& value : list.is_array() ? list : OrderedJson::array()) {
    if (value.is_number()) numbers.push_back(value.get<double>());
  }
  if (!list.is_array() || numbers.size() != list.size() || numbers.size() != count) {
    ThrowInvalidInput("{}: expected {} numbers, one for each key, found {}", name, count,
                      ShortJson(list));
  }
  return numbers;
}

// Rounding of a file that somebody wrote with few digits is no fault.
std::vector<double> Shares(const OrderedJson& line, const char* name, std::size_t count) {
  constexpr double kMostRounding = 1e-3;
  std::vector<double> shares = Numbers(Field(line, name), name, count);
  double sum = 0;
  for (const double share : shares) sum += share >= -kMostRounding ? share : NAN;
  if (!(std::abs(sum - 1) <= kMostRounding)) {
    ThrowInvalidInput("{}: expected numbers from 0 on that sum to 1, found {}", name,
                      ShortJson(line.at(name)));
  }
  return shares;
}

}  // namespace

std::string PredictionLine(const Prediction& prediction) {
  OrderedJson line = {
      {"record", prediction.record},     {"id", prediction.id},
      {"type", NameOf(prediction.type)}, {"keys", prediction.keys},
      {"logits", prediction.logits},     {"probabilities", prediction.probabilities},
      {"target", prediction.target}};
  if (prediction.logits.empty()) line.erase("logits");
  return FormatJson(line) + '\n';
}

Prediction ReadPrediction(const OrderedJson& line) {
  Prediction out;
  if (const OrderedJson* record = FindField(line, "record")) {
    if (!record->is_number_integer()) {
      ThrowInvalidInput("record: expected a number, found {}", ShortJson(*record));
    }
    out.record = record->get<std::int64_t>();
  }
  const OrderedJson& type = Field(line, "type");
  const auto known = FindQuestionType(type.is_string() ? type.get<std::string>() : "");
  if (!known) {
    ThrowInvalidInput("type: expected noul, choice or score, found {}", ShortJson(type));
  }
  out.type = *known;
  const OrderedJson* id = FindField(line, "id");
  if (id != nullptr && id->is_string()) out.id = id->get<std::string>();
  const OrderedJson& keys = Field(line, "keys");
  for (const OrderedJson& key : keys.is_array() ? keys : OrderedJson::array()) {
    if (key.is_string()) out.keys.push_back(key.get<std::string>());
  }
  const bool fits = keys.is_array() && !keys.empty() && out.keys.size() == keys.size() &&
                    (out.type != QuestionType::kNoul || out.keys.size() == 2);
  if (!fits) ThrowInvalidInput("keys: expected a list of texts, found {}", ShortJson(keys));
  if (const OrderedJson* logits = FindField(line, "logits")) {
    out.logits = Numbers(*logits, "logits", out.keys.size());
  }
  out.probabilities = Shares(line, "probabilities", out.keys.size());
  out.target = Shares(line, "target", out.keys.size());
  return out;
}

std::vector<double> WithTemperature(const std::vector<double>& logits, double temperature) {
  std::vector<double> scaled;
  for (const double logit : logits) scaled.push_back(logit / temperature);
  return Softmax(std::span<const double>(scaled));
}

}  // namespace qlora
