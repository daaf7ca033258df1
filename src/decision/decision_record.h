// Records of data as decisions with targets, in the forms that people have.
#ifndef QLORA_DECISION_DECISION_RECORD_H_
#define QLORA_DECISION_DECISION_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decision/decision_answer.h"
#include "decision/question.h"
#include "io/json_fwd.h"

namespace qlora {

enum class DecisionForm : std::uint8_t {
  // {"state": S, "questions": {id: Q}, "answers": {id: A}}; "gold", "expected" and "labels" are the
  // same as "answers", and "input" the same as "state". OpenAI's questions are a list whose names
  // are the ids, and answers may be a list in the same order.
  kQuestions,
  kOneQuestion,     // {"state", "type", "instructions", "criteria", "answer"}: one question a row
  kMultipleChoice,  // {"question", "choices", "answer" or "answerKey"} of MMLU and ARC
  kClassification,  // {"text", "label"}: a text, and one of a list of names
};

// What records of kClassification and kMultipleChoice do not say.
struct DecisionFields {
  std::string text_column = "text";
  std::string label_column = "label";
  std::vector<std::string> label_names = {};  // of kClassification; label 0 is the first
  std::string instructions = {};              // "": the question of kMultipleChoice has usual ones
};

inline constexpr std::string_view kNoticeStateText = "states that are JSON text are read as JSON";
inline constexpr std::string_view kNoticeTwins =
    "questions with options that differ in case or in spaces around them at most";

struct DecisionRecord {
  Decision decision;
  // (questions) shares of the options, which sum to 1; nothing for a question without an answer.
  std::vector<std::optional<std::vector<double>>> targets;
  Notices notices;
};

// True for a record that asks questions by its own fields: of all forms but kClassification.
bool LooksLikeDecision(const OrderedJson& record);
// Returns the form of a record; nothing when its fields tell of none.
std::optional<DecisionForm> DetectDecisionForm(const OrderedJson& record,
                                               const DecisionFields& fields);

// True when records of this form read a field of DecisionFields, by its name.
bool ReadsField(DecisionForm form, std::string_view field);

// Reads a record. Values of `questions` and of the answers, and a state, may be JSON text inside a
// text, as tables hold them. Errors: InvalidInput, without a place in the data, that begins with
// the field.
DecisionRecord ReadDecisionRecord(const OrderedJson& record, const DecisionFields& fields);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_RECORD_H_
