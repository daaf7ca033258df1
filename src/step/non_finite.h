// Finds the tensor in which a NaN or Inf appeared first.
#ifndef QLORA_STEP_NON_FINITE_H_
#define QLORA_STEP_NON_FINITE_H_

#include <string>

#include "base/index_range.h"
#include "pass/decoder.h"

namespace qlora {

// The sums that both compute overwrite `sums` of the activations, or gradient_sum of the adapter.
// After Forward and Loss: the first place in the order of computation where the residual stream is
// not finite ("the output of model.layers.3"), or "the logits" when all of it is.
std::string FirstBadActivation(Backend& backend, const IndexRange& layers,
                               Activations& activations);

// After Backward: the first adapter matrix, in the order of the backward pass, whose gradient is
// not finite ("model.layers.1.mlp.down_proj.lora_B"), or "".
std::string FirstBadGradient(Backend& backend, LoraAdapter& adapter);

}  // namespace qlora

#endif  // QLORA_STEP_NON_FINITE_H_
