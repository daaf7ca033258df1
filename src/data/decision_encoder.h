// From a record of questions to a sample: a sequence for each question, behind the prefix that
// their prompts share.
#ifndef QLORA_DATA_DECISION_ENCODER_H_
#define QLORA_DATA_DECISION_ENCODER_H_

#include <string>
#include <vector>

#include "data/data_options.h"
#include "data/sample_check.h"
#include "decision/decision_prompts.h"
#include "decision/decision_record.h"
#include "io/json_fwd.h"
#include "prompt/chat_template.h"
#include "prompt/prompt_layout.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// A question of a record that has an answer.
struct EncodedQuestion {
  Question question;
  QuestionType type = QuestionType::kNoul;
  OptionOrder order;           // the option of each label
  std::vector<double> target;  // of the options
};

// Returns `layout` with the text of its decision template as prompt_template: the user's, the one
// that is recorded there, or by the model. chat: may be null. Errors: as LoadDecisionTemplate.
PromptLayout WithDecisionTemplate(PromptLayout layout, const DecisionOptions& options,
                                  const Tokenizer& tokenizer, const ChatTemplate* chat);

// Encodes the records of one file. May be used by several threads. Tokenizer and options must
// outlive it.
class DecisionEncoder {
 public:
  // text: of the template. Errors: InvalidInput for a template that cannot ask questions.
  DecisionEncoder(std::string text, const DecisionOptions& options, const Tokenizer& tokenizer);

  // The sample of a record; without a choice when none of its questions is of the types that are
  // asked for and has an answer. Errors: InvalidInput, without a place, that names the field.
  EncodedRecord Encode(const OrderedJson& record) const;
  // The questions behind the choices of Encode, in their order.
  std::vector<EncodedQuestion> Questions(const OrderedJson& record) const;

 private:
  std::vector<EncodedQuestion> QuestionsOf(const DecisionRecord& record) const;
  OptionOrder OrderOf(const Question& question, std::uint64_t visit, std::int64_t q,
                      const std::vector<double>& target) const;

  const DecisionOptions& options_;
  DecisionTokenizer tokenizer_;
  DecisionPrompter prompter_;
};

}  // namespace qlora

#endif  // QLORA_DATA_DECISION_ENCODER_H_
