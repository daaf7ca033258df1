// Linear layers with a frozen weight and a low-rank adapter, forward and backward.
#ifndef QLORA_BACKEND_CPU_LINEAR_LINEAR_H_
#define QLORA_BACKEND_CPU_LINEAR_LINEAR_H_

#include "backend/backend.h"
#include "backend/cpu/machine.h"

namespace qlora::cpu {

// Workspace for a group of linears with up to `in_features` inputs, `features` inputs or outputs
// and a summed rank of `rank`: forward passes over up to `rows` rows, backward passes over up to
// `gradient_rows`. any_order: with any SumOrder, not kFastest alone.
WorkspaceSize LinearWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t gradient_rows,
                              std::int64_t in_features, std::int64_t features, std::int64_t rank,
                              bool any_order);

// Few rows of x are multiplied as dot products (linear_few_rows.cc), more of them as panels
// (linear_many_rows.cc). Both have an order of sums for any number of rows; linear.cc says which
// SumOrder takes which.
void LinearForward(const Machine& machine, const ops::Linear& op);
void LinearBackward(const Machine& machine, const ops::LinearBackward& op);
void WeightGradient(const Machine& machine, const ops::WeightGradient& op);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_LINEAR_LINEAR_H_
