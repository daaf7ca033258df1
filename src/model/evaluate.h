// Loss of a decoder over a data set.
#ifndef QLORA_MODEL_EVALUATE_H_
#define QLORA_MODEL_EVALUATE_H_

#include <functional>
#include <optional>

#include "data/dataset.h"
#include "model/setup.h"
#include "qlora/model.h"

namespace qlora {

// Rows that are put through the decoder at a time: many, in whole samples. longest: in tokens.
std::int64_t EvalRows(std::int64_t longest);

// arena: EvalMemory::Bytes for EvalRows rows. Samples see nothing of each other. stop: asked
// between passes; nothing is returned once it says true.
std::optional<EvalResult> EvaluateDataset(const Decoder& decoder, const LoraAdapter* adapter,
                                          const Dataset& dataset, bool per_token,
                                          const Arena& arena,
                                          const std::function<bool()>& stop = {});

}  // namespace qlora

#endif  // QLORA_MODEL_EVALUATE_H_
