// What calibration sees of a pass.
#ifndef QLORA_PASS_INPUT_OBSERVER_H_
#define QLORA_PASS_INPUT_OBSERVER_H_

#include <cstdint>
#include <functional>

#include "model/linear_shapes.h"
#include "qlora/tensor.h"

namespace qlora {

// Receives x (N, I), the input of a group of linears, before it is multiplied.
using InputObserver = std::function<void(std::int64_t layer, LinearGroup group, ConstMatrixView x)>;

}  // namespace qlora

#endif  // QLORA_PASS_INPUT_OBSERVER_H_
