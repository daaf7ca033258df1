// What a model reads to decide: one prompt for each question, whose next token is the answer.
#ifndef QLORA_DECISION_DECISION_PROMPTS_H_
#define QLORA_DECISION_DECISION_PROMPTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "decision/decision_labels.h"
#include "decision/decision_template.h"
#include "decision/question.h"

namespace qlora {

// Returns an order for one visit of a question in training: models prefer places, so that a choice
// shows its options in another order each time. Of other types the order means something and stays.
// visit: counts the visits of records; q: the question of the record.
OptionOrder ShuffledOrder(const Question& question, std::uint64_t seed, std::int64_t visit,
                          std::int64_t q);
// Option (i + shift) mod n has label i, of a choice; other types keep their order.
OptionOrder ShiftedOrder(const Question& question, std::int64_t shift);
// Returns at most `most` options of an order: those with a share of the target, and the first
// others.
OptionOrder LimitOrder(const OptionOrder& order, const std::vector<double>& target,
                       std::int64_t most);

// The values of options in the order of the labels, and back: values of n options, of which those
// that the order leaves out are 0.
std::vector<double> InOrder(const std::vector<double>& of_options, const OptionOrder& order);
std::vector<double> OfOptions(const std::vector<double>& in_order, const OptionOrder& order,
                              std::int64_t n);

struct DecisionPrompt {
  std::vector<std::int32_t> ids;        // (T) the prompt
  std::vector<std::int32_t> label_ids;  // (n) the tokens of its labels
  OptionOrder order;                    // (n) the option of each label
};

// Makes prompts. May be used by several threads. The tokenizer must outlive it.
class DecisionPrompter {
 public:
  DecisionPrompter(DecisionTemplate decision_template, const DecisionTokenizer& tokenizer);

  const DecisionTemplate& decision_template() const { return template_; }
  const DecisionTokenizer& tokenizer() const { return tokenizer_; }

  // Returns the prompt of question q. The spelling of a special token in the state or the question
  // is text. Errors: InvalidInput as DecisionTemplate::Render, and where no character is free to
  // mark such a spelling with.
  DecisionPrompt Encode(const Decision& decision, std::int64_t q, const OptionOrder& order) const;
  std::string Text(const Decision& decision, std::int64_t q, const OptionOrder& order) const;

  // True when a text of the decision has the spelling of a special token, which llama.cpp would
  // read as the token.
  bool HasSpecialSpelling(const Decision& decision) const;

 private:
  std::string MarkFor(const Decision& decision) const;

  DecisionTemplate template_;
  const DecisionTokenizer& tokenizer_;
  std::vector<std::string> labels_;
  std::vector<std::string> special_;  // the spellings of special tokens
};

// The number of tokens that all prompts begin with, at most one less than the shortest has; 0
// without prompts.
std::int64_t SharedPrefix(std::span<const DecisionPrompt> prompts);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_PROMPTS_H_
