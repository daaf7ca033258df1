// Prompts as texts that a model reads, in the layout of the data that it was trained on.
#ifndef QLORA_PROMPT_H_
#define QLORA_PROMPT_H_

#include <string>

namespace qlora {

// A prompt in its layout, ready to be tokenized.
struct PromptText {
  std::string text = {};
  // The tokenizer adds BOS where it does. False: the text has its special tokens already.
  bool add_special_tokens = true;
};

// A prompt of the training data, in the form that `generate` takes.
struct PromptExample {
  std::string prompt = {};  // the text that a person types; "" when only a record holds it
  std::string system = {};  // the system message, or ""
  std::string record = {};  // a JSON object: the fields of the prompt, where `prompt` is not enough
  bool raw = false;         // the text is to be given as it is

  bool found() const { return !prompt.empty() || !record.empty(); }
};

}  // namespace qlora

#endif  // QLORA_PROMPT_H_
