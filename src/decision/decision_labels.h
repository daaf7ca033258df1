// The tokens of decision prompts, and the letters that label options.
//
// The model answers with one token, so a label is a letter that the tokenizer makes one token of
// when it reads the letter alone. As llama.cpp does, option i gets the i-th of these letters,
// whatever the prompt ends with.
#ifndef QLORA_DECISION_DECISION_LABELS_H_
#define QLORA_DECISION_DECISION_LABELS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace qlora {

// Who puts a space before texts: SentencePiece's tokenizers put one before every text, and before a
// letter, whose pieces with a space are fewer and unnatural behind a line end.
enum class PromptSpace : std::uint8_t {
  // The prompt has the spaces that it needs. An exported file says the same to llama.cpp:
  // tokenizer.ggml.add_space_prefix is false there.
  kOfPrompt,
  kOfTokenizer,  // for files that are decision models already
};

struct DecisionLabel {
  std::string text;
  std::int32_t id = -1;
};

// Encodes prompts, and knows the labels. May be used by several threads. The tokenizer must outlive
// it.
class DecisionTokenizer {
 public:
  explicit DecisionTokenizer(const Tokenizer& tokenizer,
                             PromptSpace space = PromptSpace::kOfPrompt);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Those of A to Z that are single tokens, in this order.
  const std::vector<DecisionLabel>& labels() const { return labels_; }
  std::vector<std::string> LabelTexts() const;

  // Returns the tokens of a prompt, which holds its BOS. `mark`: as in EncodeOptions.
  std::vector<std::int32_t> Encode(std::string_view text, std::string_view mark = {}) const;

  // Returns what has to stand before the text of a template that begins with neither: BOS where the
  // tokenizer adds it, and the space that the tokenizer would put there.
  std::string Front() const;

 private:
  const Tokenizer& tokenizer_;
  bool prefix_space_;
  std::vector<DecisionLabel> labels_;
};

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_LABELS_H_
