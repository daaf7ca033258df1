#include "decision/decision_labels.h"

#include <algorithm>

namespace qlora {

DecisionTokenizer::DecisionTokenizer(const Tokenizer& tokenizer, PromptSpace space)
    : tokenizer_(tokenizer), prefix_space_(space == PromptSpace::kOfTokenizer) {
  for (char letter = 'A'; letter <= 'Z'; ++letter) {
    const std::string text(1, letter);
    const std::vector<std::int32_t> ids = Encode(text);
    // The token for unknown text tells no letter from another.
    if (ids.size() == 1 && ids[0] != tokenizer.unk_id()) labels_.push_back({text, ids[0]});
  }
}

std::vector<std::string> DecisionTokenizer::LabelTexts() const {
  std::vector<std::string> texts;
  for (const DecisionLabel& label : labels_) texts.push_back(label.text);
  return texts;
}

std::vector<std::int32_t> DecisionTokenizer::Encode(std::string_view text,
                                                    std::string_view mark) const {
  return tokenizer_.Encode(text,
                           {.special_tokens = false, .prefix_space = prefix_space_, .mark = mark});
}

std::string DecisionTokenizer::Front() const {
  const auto bos = tokenizer_.bos_id();
  std::string front = tokenizer_.adds_bos() && bos ? tokenizer_.TokenText(*bos) : "";
  if (tokenizer_.spec().add_prefix_space && !prefix_space_) front += ' ';
  return front;
}

}  // namespace qlora
