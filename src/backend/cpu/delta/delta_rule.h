// The gated delta rule by chunks; products are float32 whatever the compute type.
#ifndef QLORA_BACKEND_CPU_DELTA_DELTA_RULE_H_
#define QLORA_BACKEND_CPU_DELTA_DELTA_RULE_H_

#include "backend/cpu/machine.h"
#include "backend/ops.h"

namespace qlora::cpu {

// Each worker has the matrices of one chunk, about 600 KB where K = V = 128; the gradient twice as
// much, the states before all chunks of a sequence, 64 KB each, and sums of dq and dk where value
// heads share them, 1 KB a token. length: tokens of the longest sequence; 0 without a backward
// pass.
WorkspaceSize DeltaForwardWorkspace(const Kernels& kernels, const DeltaRuleShape& shape);
WorkspaceSize DeltaBackwardWorkspace(const Kernels& kernels, const DeltaRuleShape& shape,
                                     std::int64_t length);

// machine.kernels: those of SelectKernels(kF32).
void GatedDeltaRule(const Machine& machine, const ops::GatedDeltaRule& op);
void GatedDeltaRuleBackward(const Machine& machine, const ops::GatedDeltaRuleBackward& op);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_DELTA_DELTA_RULE_H_
