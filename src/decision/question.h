// Decisions: a state, and typed questions about it, each answered by one probability per option.
//
//   question.h              what is asked
//   decision_record.h       records of data in all their forms
//   decision_options.h      options that these records do not read
//   decision_answer.h       their answers
//   class_labels.h          names of labels that a data set has beside its records
//   decision_template.h     the text of a prompt
//   decision_labels.h       its tokens, and those of the labels
//   decision_prompts.h      both together: the tokens that the model reads, in an order of options
//   decision_loss.h         what training minimizes
//   prediction.h            what a model answered
//   decision_metrics.h      judges it
//   decision_temperature.h  calibrates it
//   decision_file.h         what is kept beside an adapter
//   decision_wire.h         requests and answers of programs
#ifndef QLORA_DECISION_QUESTION_H_
#define QLORA_DECISION_QUESTION_H_

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

enum class QuestionType : std::uint8_t {
  kNoul,    // yes or no
  kChoice,  // one of a closed set
  kScore,   // one of ordered levels
};
inline constexpr std::array kQuestionTypes = {QuestionType::kNoul, QuestionType::kChoice,
                                              QuestionType::kScore};
std::string_view NameOf(QuestionType type);  // "noul", "choice", "score"
// Also by OpenAI's name of noul, predicate. Nothing for other names.
std::optional<QuestionType> FindQuestionType(std::string_view name);
// Reads "noul,choice". Errors: InvalidInput that begins with `where`, for another name or none.
std::vector<QuestionType> ParseQuestionTypes(std::string_view list, std::string_view where);

inline constexpr std::int64_t kMinLevels = 2;
inline constexpr std::int64_t kMaxLevels = 10;

struct DecisionOption {
  std::string key;          // noul: "false", "true"; score: "0", "1" ...
  OrderedJson description;  // text, list or object; null: none. Of a score, the level.
  // As it was asked: the value of a choice, the name of a level.
  OrderedJson value;
};

struct Question {
  std::string id;
  QuestionType type = QuestionType::kNoul;
  OrderedJson instructions;             // text, list or object
  std::vector<DecisionOption> options;  // noul: false, true
};

struct Decision {
  OrderedJson state;  // not null
  std::vector<Question> questions;
};

// What a reader of questions accepts.
struct QuestionRules {
  // Options of a choice under `criteria` as a list of keys, and under OpenAI's names, `choices` and
  // `levels`. Requests have one form each.
  bool all_forms = true;
  std::int64_t min_options = 2;  // of a choice
};

// Reads {"type", "instructions", "criteria"}. where: how messages call it, "questions.who".
// Errors (both): InvalidInput that begins with `where`.
Question ReadQuestion(const OrderedJson& question, std::string id, const std::string& where,
                      const QuestionRules& rules);
// Reads OpenAI's {"type", "instructions", "choices" or "levels"}; a predicate has no criteria. A
// level is described by its description, or else by its label.
Question ReadOpenAiQuestion(const OrderedJson& question, std::string id, const std::string& where);

// Returns the option of that key, or -1.
std::int64_t FindOption(const Question& question, std::string_view key);
// Returns "cat, dog, bird": the keys, for messages; of a score its levels.
std::string ListOfOptions(const Question& question);

// The number of the first largest value: what a distribution decides for. `values` is not empty.
std::int64_t FirstLargest(const std::vector<double>& values);
// The mean of 0, 1 ... n - 1, weighted by the shares.
double MeanLevel(const std::vector<double>& shares);

// Returns a value for a message, at most 60 bytes of JSON.
std::string ShortJson(const OrderedJson& value);
// Returns the value of a key, or null when it is absent or null.
const OrderedJson* FindField(const OrderedJson& object, std::string_view key);

}  // namespace qlora

#endif  // QLORA_DECISION_QUESTION_H_
