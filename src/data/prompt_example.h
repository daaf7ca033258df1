// A prompt of the training data that a person can type.
#ifndef QLORA_DATA_PROMPT_EXAMPLE_H_
#define QLORA_DATA_PROMPT_EXAMPLE_H_

#include "data/dataset.h"
#include "qlora/prompt.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Returns a short prompt of the first samples, which gets exactly the text that is trained. A
// prompt that a person types is preferred to a record. Nothing (PromptExample::found) when all are
// long.
PromptExample FindPromptExample(const Dataset& dataset, const Tokenizer& tokenizer);

}  // namespace qlora

#endif  // QLORA_DATA_PROMPT_EXAMPLE_H_
