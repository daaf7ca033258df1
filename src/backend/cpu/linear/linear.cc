// Decides how a group of linears is multiplied, and plans the workspace for every way.
#include "backend/cpu/linear/linear.h"

#include <algorithm>

#include "backend/cpu/gemm/dot_weight.h"
#include "backend/cpu/linear/linear_blocks.h"
#include "base/check.h"

namespace qlora::cpu {
namespace {

// Dot products have no dropout.
bool AreFewRows(const Kernels& kernels, std::span<const LinearView> linears, std::int64_t rows) {
  const auto fits = [&](const LinearView& linear) {
    const DotForm form = DotFormOf(kernels, linear.weight, rows);
    // All linears of the group or none: the two ways pack x differently, and x is packed once.
    return rows <= MostDotRows(kernels, form) && linear.lora.dropout == 0;
  };
  return std::ranges::all_of(linears, fits);
}

}  // namespace

void CheckGroup(std::span<const LinearView> linears) {
  if (std::ssize(linears) > kMostLinears) {
    ThrowRuntime("linear: expected a group of at most {} linears, found {}", kMostLinears,
                 linears.size());
  }
}

std::int64_t SumOfRanks(std::span<const LinearView> linears) {
  std::int64_t rank = 0;
  for (const LinearView& linear : linears) rank += linear.lora.a.rows;
  return rank;
}

WorkspaceSize LinearWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t gradient_rows,
                              std::int64_t in_features, std::int64_t features, std::int64_t rank) {
  // Which way is taken depends on the rows of each call. A workspace of fixed size must serve all
  // three, so that no call allocates.
  return Max(FewRowsWorkspace(kernels, rows, in_features, rank),
             Max(ManyRowsWorkspace(kernels, rows, in_features, rank),
                 BackwardWorkspace(kernels, gradient_rows, features, rank)));
}

void LinearForward(const Machine& machine, const ops::Linear& op) {
  CheckGroup(op.linears);
  const bool few = AreFewRows(machine.kernels, op.linears, op.x.rows);
  const auto workspace = few ? FewRowsWorkspace : ManyRowsWorkspace;
  const auto forward = few ? ForwardFewRows : ForwardManyRows;
  machine.workspace.Check(workspace(machine.kernels, op.x.rows, op.x.cols, SumOfRanks(op.linears)));
  forward(machine, op);
}

}  // namespace qlora::cpu
