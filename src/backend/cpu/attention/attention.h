// Causal attention in tiles; no matrix of queries times keys is ever stored.
#ifndef QLORA_BACKEND_CPU_ATTENTION_ATTENTION_H_
#define QLORA_BACKEND_CPU_ATTENTION_ATTENTION_H_

#include "backend/backend.h"
#include "backend/cpu/machine.h"

namespace qlora::cpu {

WorkspaceSize AttentionForwardWorkspace(const Kernels& kernels, const AttentionShape& shape);
// length: tokens of the longest sequence; 0 without a backward pass.
WorkspaceSize AttentionBackwardWorkspace(const Kernels& kernels, const AttentionShape& shape,
                                         std::int64_t rows, std::int64_t length);

void AttentionForward(const Machine& machine, const ops::Attention& op);
void AttentionBackward(const Machine& machine, const ops::AttentionBackward& op);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ATTENTION_ATTENTION_H_
