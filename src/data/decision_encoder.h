// From a record of questions to a sample: a sequence for each question, behind the prefix that
// their prompts share.
#ifndef QLORA_DATA_DECISION_ENCODER_H_
#define QLORA_DATA_DECISION_ENCODER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/batch.h"
#include "data/data_options.h"
#include "data/sample_check.h"
#include "decision/decision_prompts.h"
#include "decision/decision_record.h"
#include "io/json_fwd.h"
#include "prompt/chat_template.h"
#include "prompt/prompt_layout.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// In place of the number of a visit: options are in the order in which the record has them.
inline constexpr std::int64_t kNoVisit = -1;

// A question of a record that has an answer, and is of the types that are asked for.
struct AnsweredQuestion {
  std::int64_t number = 0;     // in its record
  std::vector<double> target;  // of its options
};

// The prompt of a question, and the answer to it.
struct AnsweredPrompt {
  DecisionPrompt prompt;
  QuestionType type = QuestionType::kNoul;
  std::vector<double> target;  // in the order of the labels; of no known answer all the same
};

// Lays prompts about one state out as branches behind their shared prefix, or as sequences of their
// own. Each has a choice, behind its last token.
//
//   ids        state, questions | A. | B. ... Answer:   a branch for each prompt
//   choices                       the last row of each branch, over the tokens of its labels
Sample SampleOf(std::span<const AnsweredPrompt> prompts, bool share_prefix);

// Returns `layout` with the text of its decision template as prompt_template: the user's, the one
// that is recorded there, or by the model. chat: may be null. Errors: as LoadDecisionTemplate.
PromptLayout WithDecisionTemplate(PromptLayout layout, const DecisionOptions& options,
                                  const Tokenizer& tokenizer, const ChatTemplate* chat);

// Encodes the records of one file. May be used by several threads. Tokenizer and options must
// outlive it.
class DecisionEncoder {
 public:
  // text: of the template; options.space: of the tokenizer. Errors: InvalidInput for a template
  // that cannot ask questions.
  DecisionEncoder(std::string text, const DecisionOptions& options, const Tokenizer& tokenizer);

  // The sample of a record; without a choice when none of its questions is of the types that are
  // asked for and has an answer. Errors: InvalidInput, without a place, that names the field.
  // visit: of the record, from 0 on, or kNoVisit; with shuffled options each has another order.
  // draw: the visit that says which options of a limited choice are shown.
  EncodedRecord Encode(const OrderedJson& record, std::int64_t visit, std::int64_t draw) const;
  EncodedRecord Encode(const OrderedJson& record, std::int64_t visit = 0) const {
    return Encode(record, visit, visit);
  }

  bool shuffles_options() const { return options_.shuffles_options; }
  bool shares_prefix() const { return options_.share_prefix; }

  // The parts of Encode. Errors: as there.
  DecisionRecord Read(const OrderedJson& record) const;
  std::vector<AnsweredQuestion> Questions(const DecisionRecord& record) const;
  AnsweredPrompt Prompt(const Decision& decision, const AnsweredQuestion& question,
                        const OptionOrder& order) const;

 private:
  OptionOrder OrderOf(const DecisionRecord& record, const AnsweredQuestion& question,
                      std::int64_t visit, std::int64_t draw) const;

  const DecisionOptions& options_;
  DecisionTokenizer tokenizer_;
  DecisionPrompter prompter_;
};

}  // namespace qlora

#endif  // QLORA_DATA_DECISION_ENCODER_H_
