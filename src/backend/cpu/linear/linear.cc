// Decides how a group of linears is multiplied, and plans the workspace for every way.
#include "backend/cpu/linear/linear.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/gemm/dot_weight.h"
#include "backend/cpu/linear/linear_blocks.h"
#include "base/check.h"
#include "base/matrix.h"

namespace qlora::cpu {
namespace {

// Dot products have no dropout, and panels serve any number of rows in 8 bits.
bool AreFewRows(const Kernels& kernels, std::span<const LinearView> linears, std::int64_t rows) {
  const auto fits = [&](const LinearView& linear) {
    const DotForm form = DotFormOf(kernels, linear.weight, rows);
    // All linears of the group or none: the two ways pack x differently, and x is packed once.
    return rows <= MostDotRows(kernels, form) && linear.lora.dropout == 0 &&
           !IsCoded(kernels, linear.weight);
  };
  return std::ranges::all_of(linears, fits);
}

// run(op) for each linear of a group.
template <typename Run>
void ForEachLinear(const ops::Linear& op, const Run& run) {
  for (std::size_t l = 0; l < op.linears.size(); ++l) {
    std::vector<LoraRows> ranges(op.ranges.begin(), op.ranges.end());
    for (LoraRows& range : ranges) range.loras = range.loras.subspan(l, 1);
    run(ops::Linear{op.linears.subspan(l, 1), op.x, op.outputs.subspan(l, 1), op.store, op.order,
                    ranges});
  }
}

void RunFew(const Machine& machine, const ops::Linear& op) {
  machine.workspace.Check(FewRowsWorkspace(machine.kernels, op.x.rows, op.x.cols, LargestRank(op),
                                           op.order != SumOrder::kFastest));
  ForwardFewRows(machine, op);
}

// Prepacked weights whose dot products serve many rows, too.
bool HaveDotsForMany(const Kernels& kernels, std::span<const LinearView> linears) {
  return kernels.prepacked != nullptr && kernels.prepacked->serves_many &&
         std::ranges::all_of(linears, [&](const LinearView& linear) {
           return linear.weight.is_reordered() && linear.lora.dropout == 0;
         });
}

// run(op) for rows [first, first + rows) of x.
template <typename Run>
void ForRows(const ops::Linear& op, std::int64_t first, std::int64_t rows, const Run& run) {
  std::vector<LinearOutput> outputs(op.outputs.begin(), op.outputs.end());
  for (LinearOutput& out : outputs) {
    out.y = Rows(out.y, first, rows);
    if (!out.u.empty()) out.u = Rows(out.u, first, rows);
    if (!out.base.empty()) out.base = Rows(out.base, first, rows);
  }
  std::vector<LoraRows> ranges;
  for (const LoraRows& range : op.ranges) {
    const std::int64_t begin = std::max(range.begin, first);
    const std::int64_t end = std::min(range.begin + range.rows, first + rows);
    if (begin < end) ranges.push_back({begin - first, end - begin, range.loras});
  }
  run(ops::Linear{op.linears, Rows(op.x, first, rows), outputs, op.store, op.order, ranges});
}

// As many rows at a time as the workspace of dot products has room for.
void RunManyDots(const Machine& machine, const ops::Linear& op) {
  const std::int64_t most = MostDotRows(machine.kernels, DotForm::kPrepacked, true);
  for (std::int64_t row = 0; row < op.x.rows; row += most) {
    ForRows(op, row, std::min(most, op.x.rows - row),
            [&](const ops::Linear& part) { RunFew(machine, part); });
  }
}

// run(op) for as many rows as fit into one chunk and belong to kMostRanges ranges at most.
template <typename Run>
void ForEachChunk(const ops::Linear& op, const Run& run) {
  for (std::int64_t r = 0; r < std::ssize(op.ranges); r += kMostRanges) {
    const LoraRows& last = op.ranges[std::min(r + kMostRanges, std::ssize(op.ranges)) - 1];
    const std::int64_t end = last.begin + last.rows;
    for (std::int64_t row = op.ranges[r].begin; row < end; row += kRowChunk) {
      ForRows(op, row, std::min(kRowChunk, end - row), run);
    }
  }
}

void RunPanels(const Machine& machine, const ops::Linear& op) {
  const std::int64_t ranges = std::max<std::int64_t>(1, std::ssize(op.ranges));
  machine.workspace.Check(
      ManyRowsWorkspace(machine.kernels, op.x.rows, ranges, op.x.cols, LargestRank(op)));
  ForwardManyRows(machine, op);
}

void RunMany(const Machine& machine, const ops::Linear& op) {
  if (op.order == SumOrder::kMany && HaveDotsForMany(machine.kernels, op.linears)) {
    return RunManyDots(machine, op);
  }
  const auto is_coded = [&](const LinearView& linear) {
    return IsCoded(machine.kernels, linear.weight);
  };
  // Packs x for all linears of a group in one way.
  if (std::ranges::any_of(op.linears, is_coded) && !AreCoded(machine.kernels, op.linears)) {
    return ForEachLinear(op, [&](const ops::Linear& one) { RunMany(machine, one); });
  }
  if (op.ranges.empty()) return RunPanels(machine, op);
  ForEachChunk(op, [&](const ops::Linear& part) { RunPanels(machine, part); });
}

}  // namespace

void CheckGroup(std::span<const LinearView> linears) {
  if (std::ssize(linears) > kMostLinears) {
    ThrowRuntime("linear: expected a group of at most {} linears, found {}", kMostLinears,
                 linears.size());
  }
}

std::int64_t LargestRank(const ops::Linear& op) {
  std::int64_t largest = 0;
  for (const LinearView& linear : op.linears) largest += linear.lora.a.rows;
  for (const LoraRows& range : op.ranges) {
    std::int64_t rank = 0;
    for (const LoraView& lora : range.loras) rank += lora.a.rows;
    largest = std::max(largest, rank);
  }
  return largest;
}

WorkspaceSize LinearWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t gradient_rows,
                              std::int64_t in_features, std::int64_t features, std::int64_t rank,
                              bool any_order) {
  // Which way is taken depends on the rows of each call. A workspace of fixed size must serve all
  // three, so that no call allocates.
  return Max(FewRowsWorkspace(kernels, rows, in_features, rank, any_order),
             Max(ManyRowsWorkspace(kernels, rows, any_order ? kMostRanges : 1, in_features, rank),
                 BackwardWorkspace(kernels, gradient_rows, features, rank)));
}

void LinearForward(const Machine& machine, const ops::Linear& op) {
  CheckGroup(op.linears);
  switch (op.order) {
    case SumOrder::kFastest:
      return AreFewRows(machine.kernels, op.linears, op.x.rows) ? RunFew(machine, op)
                                                                : RunMany(machine, op);
    case SumOrder::kFew:
      return RunFew(machine, op);
    case SumOrder::kMany:
      return RunMany(machine, op);
  }
}

}  // namespace qlora::cpu
