// The common form of the stages of a tokenizer.json (normalizer, pre_tokenizer, post_processor,
// decoder): a stage is one step or a Sequence of steps, and there are limits to their work.
#ifndef QLORA_TOKENIZER_STAGE_H_
#define QLORA_TOKENIZER_STAGE_H_

#include <string_view>
#include <vector>

#include "tokenizer/json_value.h"

namespace qlora {

// The steps of a stage, each an object with the key "type": `stage` itself or, where its type is
// Sequence, the items of its list `list_key`; sequences in sequences are flattened, null is not
// a step. Errors: InvalidInput when there are more than 256 steps.
std::vector<JsonValue> StepsOf(const JsonValue& stage, std::string_view list_key);

// The product of the factors by which the steps of a stage may make a text longer. Without a limit,
// a file of 5 KB could ask for a text 2^64 times as long as the user's.
class Growth {
 public:
  // Errors: InvalidInput, naming `step`, when the product exceeds 256. (The steps of Llama 2 give
  // 12: a space becomes 3 bytes, and 3 bytes more are put before a text of 1 byte.)
  void Multiply(double factor, const JsonValue& step);

 private:
  double product_ = 1;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_STAGE_H_
