// Rows of the head that no training has told apart: those of tokens that the base never saw.
#ifndef QLORA_MODEL_UNTRAINED_ROWS_H_
#define QLORA_MODEL_UNTRAINED_ROWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "backend/weight.h"

namespace qlora {

// Returns those of `ids`, rows of head (V, D), whose row is 0 or nearly parallel to many others: a
// token that never is the answer is moved away from all answers alike, so that such rows become one
// vector, and no adapter of the layers below can tell them apart. Looks at some hundred rows to
// find that vector, and at 256 coordinates of each. memory: of head.
std::vector<std::int32_t> FindUntrainedRows(Memory& memory, const WeightView& head,
                                            std::span<const std::int32_t> ids);

}  // namespace qlora

#endif  // QLORA_MODEL_UNTRAINED_ROWS_H_
