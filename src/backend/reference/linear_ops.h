// Linears and their gradients by the statements of ops.h, for the reference backend. frozen: how
// products with frozen weights are computed; docs/math/eight-bit.md has the rule of 8 bits.
#ifndef QLORA_BACKEND_REFERENCE_LINEAR_OPS_H_
#define QLORA_BACKEND_REFERENCE_LINEAR_OPS_H_

#include "backend/backend.h"

namespace qlora::reference {

void Run(const ops::Linear& op, FrozenProducts frozen);
void Run(const ops::LinearBackward& op, FrozenProducts frozen);
void Run(const ops::ExpertLinear& op, FrozenProducts frozen);
void Run(const ops::ExpertLinearBackward& op, FrozenProducts frozen);

}  // namespace qlora::reference

#endif  // QLORA_BACKEND_REFERENCE_LINEAR_OPS_H_
