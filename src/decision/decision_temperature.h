// Temperatures: one number for each type of question, which makes the probabilities softmax(z / T)
// as large as the answers are often right. Decisions stay as they are.
#ifndef QLORA_DECISION_DECISION_TEMPERATURE_H_
#define QLORA_DECISION_DECISION_TEMPERATURE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decision/prediction.h"
#include "decision/question.h"

namespace qlora {

inline constexpr double kLeastTemperature = 0.05;
inline constexpr double kMostTemperature = 20;

// True for a type, and for a type with a number of options that its questions may have, "choice.3".
bool IsTemperatureName(std::string_view name);

// By "noul", "choice", "score", or by type and number of options, "choice.3", which comes before
// the type. What is not there is 1.
class Temperatures {
 public:
  // Errors: InvalidInput that begins with `where` for another name or a value that is not above 0.
  void Set(const std::string& name, double temperature, std::string_view where);
  double Of(QuestionType type, std::int64_t options) const;
  const std::map<std::string, double>& values() const { return values_; }

 private:
  std::map<std::string, double> values_;
};

// Reads "noul=1.2,choice=0.9". Errors: InvalidInput that begins with `where`, as Set, and for a
// name that appears twice.
Temperatures ParseTemperatures(std::string_view list, std::string_view where);

// Returns the T in [kLeastTemperature, kMostTemperature] of the least mean cross-entropy of
// softmax(z / T) against the targets; 1 when all logits are equal. Rows have logits.
double FitTemperature(std::span<const Prediction> rows);

struct FittedTemperature {
  QuestionType type = QuestionType::kNoul;
  std::int64_t questions = 0;
  double fitted = 1;       // what FitTemperature says; 1 of too few questions
  double temperature = 1;  // to be used: 1 where the fit is at a bound, which no data support
  bool is_few = false;     // fewer than min_questions
  bool is_at_bound = false;
};
// One for each type that occurs, in the order of the types.
std::vector<FittedTemperature> FitTemperatures(std::span<const Prediction> rows,
                                               std::int64_t min_questions);
Temperatures ToUse(std::span<const FittedTemperature> fitted);
// Says it for a person: "noul: 1.31, of 24 questions"; "score: 20 at its bound ...: 1 is used".
std::string Describe(const FittedTemperature& fitted);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_TEMPERATURE_H_
