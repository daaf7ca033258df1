// The warning about tokens that the base never learned to write.
#ifndef QLORA_TRAIN_UNTRAINED_TOKENS_H_
#define QLORA_TRAIN_UNTRAINED_TOKENS_H_

#include <string>

#include "data/dataset.h"
#include "model/weights.h"

namespace qlora {

// Returns a warning when a part of the tokens that are trained on has rows in the head that were
// never trained (model/untrained_rows.h): the loss then stands still at some value. "" otherwise.
// Looks at the first samples. memory: of head.
std::string WarnOfUntrainedTokens(const Dataset& train, Memory& memory, const WeightView& head);

}  // namespace qlora

#endif  // QLORA_TRAIN_UNTRAINED_TOKENS_H_
