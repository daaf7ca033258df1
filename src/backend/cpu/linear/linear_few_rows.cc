// Linears over few rows, as when text is generated: every row of a weight is read in the order of
// memory, and meets all rows of x as dot products. The update of an adapter, scale u B^T, is a tile
// of Kernels::multiply.
#include <algorithm>
#include <functional>

#include "backend/cpu/gemm/dot_weight.h"
#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/linear/linear_blocks.h"

namespace qlora::cpu {
namespace {

// Weights per task: about two microseconds at the speed of memory, so that threads share evenly.
constexpr std::int64_t kTaskWeights = 131072;
constexpr std::int64_t kMostTaskRows = 20 * kDotWeightRows;
static_assert(kMostTaskRows % kPrepackedRows == 0 && kMostTaskRows % kDotWeightRows == 0);
static_assert(kMostTaskRows % 16 == 0);  // whole vectors of lanes
constexpr std::int64_t kRankRows = 4;    // rows of A per task

// Operands that all workers read.
struct FewRowsOperands {
  FewRowsOperands(Carver& carver, const Kernels& kernels, std::int64_t count,
                  std::int64_t in_features, std::int64_t rank) {
    const DType element = ElementType(kernels);
    for (int f = 0; f < kDotFormCount; ++f) {
      const std::int64_t most = MostDotRows(kernels, kDotForms[f]);
      // All rows of x meet rows of A, even if they are too many for rows of a weight.
      const std::int64_t rows = kDotForms[f] == DotForm::kRows ? count : std::min(count, most);
      x[f] = carver.Matrix(element, rows, PackedElements(kDotForms[f], in_features));
    }
    u = carver.Matrix(element, count, rank + kMostLinears * (kernels.step - 1));
  }

  MatrixView x[kDotFormCount];
  MatrixView u;  // the rows operand scale u of one linear after the other
};

// Scratch of one worker.
struct FewRowsScratch {
  FewRowsScratch(Carver& carver, const Kernels& kernels, std::int64_t count,
                 std::int64_t in_features, std::int64_t rank)
      : weight(carver, kernels, std::max(in_features, rank),
               kernels.prepacked != nullptr && count >= kernels.prepacked->fewest_repacked_rows) {
    sums = carver.Matrix(DType::kF32, count, kMostTaskRows);
    panel = carver.Matrix(ElementType(kernels), RoundUp(rank, kernels.step), kernels.panel);
  }

  DotScratch weight;
  MatrixView sums;   // (rows of x, rows of a weight)
  MatrixView panel;  // (R, lanes) of B
};

class FewRowsRun : LinearRun {
 public:
  FewRowsRun(const Machine& machine, const ops::Linear& op)
      : LinearRun(machine, op), outputs_(op.outputs), rank_(SumOfRanks(op.linears)) {
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      const std::int64_t step = FormOf(l) == DotForm::kPrepacked ? kPrepackedRows : kDotWeightRows;
      task_rows_[l] = std::clamp(RoundUp(kTaskWeights / x_.cols, step), step, kMostTaskRows);
    }
  }

  void Run() {
    Carver carver(machine_.workspace.shared());
    const FewRowsOperands packed(carver, kernels_, x_.rows, x_.cols, rank_);
    DotOperand x = {.kernels = kernels_, .count = x_.rows, .cols = x_.cols};
    for (int f = 0; f < kDotFormCount; ++f) {
      x.packed[f] = packed.x[f].Row<std::byte>(0);
      if (Needs(kDotForms[f])) x.Pack(machine_.context, kDotForms[f], x_);
    }
    std::byte* u = packed.u.Row<std::byte>(0);
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      u_rows_[l] = {u, ElementType(kernels_), x_.rows, lora(l).a.rows,
                    RoundUp(lora(l).a.rows, kernels_.step)};
      u += x_.rows * u_rows_[l].stride * kernels_.bytes;
    }
    if (rank_ > 0) LowRank(x);
    Outputs(x);
  }

 private:
  FewRowsScratch Scratch(int worker) const {
    Carver carver(machine_.workspace.worker(worker));
    return FewRowsScratch(carver, kernels_, x_.rows, x_.cols, rank_);
  }

  DotForm FormOf(std::int64_t l) const { return DotFormOf(kernels_, linears_[l].weight, x_.rows); }
  bool Needs(DotForm form) const {
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      if (FormOf(l) == form || (form == DotForm::kRows && has_lora(l))) return true;
    }
    return false;
  }

  // u = x A^T, written to the outputs and packed.
  void LowRank(const DotOperand& x) const {
    ForEachPart([&](std::int64_t l) { return Pieces(lora(l).a.rows, kRankRows); },
                [&](std::int64_t l, std::int64_t part, int worker) {
                  const MatrixView& u = outputs_[l].u;
                  const std::int64_t r = part * kRankRows;
                  DotWeightRows(x, lora(l).a, r, std::min(kRankRows, u.cols - r),
                                Scratch(worker).weight, u.Row<float>(0) + r, u.stride);
                });
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      if (!has_lora(l)) continue;
      kernels_.pack_rows(outputs_[l].u, lora(l).scale, u_rows_[l].data, u_rows_[l].stride);
    }
  }

  // y = x W^T + bias + scale u B^T. Tasks that are handed out in turn are far apart in memory, so
  // that each worker mostly continues where it was: memory is fastest in long streams.
  //
  //   turn  0  2  4 ...  |  1  3  5 ...      with two workers
  //         weights in the order of memory
  void Outputs(const DotOperand& x) const {
    const auto parts = [&](std::int64_t l) { return Pieces(features(l), task_rows_[l]); };
    std::int64_t tasks = 0;
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) tasks += parts(l);
    const std::int64_t streams = machine_.context.threads();
    const std::int64_t length = Pieces(tasks, streams);
    const auto task = [&](std::int64_t turn, int worker) {
      const std::int64_t index = turn % streams * length + turn / streams;
      if (index >= tasks) return;
      const auto [l, part] = FindPart(index, parts);
      OutputRows(l, part * task_rows_[l], x, Scratch(worker));
    };
    machine_.context.ParallelFor(streams * length, std::ref(task));
  }

  // Columns of y from o on, one task.
  void OutputRows(std::int64_t l, std::int64_t o, const DotOperand& x,
                  const FewRowsScratch& scratch) const {
    const LinearView& linear = linears_[l];
    const std::int64_t rows = std::min(task_rows_[l], features(l) - o);
    DotWeightRows(x, linear.weight, o, rows, scratch.weight, scratch.sums.Row<float>(0),
                  scratch.sums.stride);
    if (has_lora(l)) AddLowRankPart(l, o, rows, scratch);
    for (std::int64_t m = 0; m < x.count && !linear.bias.empty(); ++m) {
      float* sums = scratch.sums.Row<float>(m);
      for (std::int64_t r = 0; r < rows; ++r) sums[r] += linear.bias.Row<float>(0)[o + r];
    }
    StoreTile(scratch.sums.Row<float>(0), scratch.sums.stride, store_ == Store::kAdd,
              Block(outputs_[l].y, 0, x.count, o, rows));
  }

  // sums += scale u B^T, with rows of B as lanes; those that fill up the last vector are added to
  // sums that nobody reads.
  void AddLowRankPart(std::int64_t l, std::int64_t o, std::int64_t rows,
                      const FewRowsScratch& scratch) const {
    for (std::int64_t r = 0; r < rows; r += kernels_.panel) {
      const std::int64_t lanes = std::min(kernels_.panel, rows - r);
      const std::int64_t width = RoundUp(lanes, kernels_.vector);
      kernels_.pack_panel_of_rows(Rows(lora(l).b, o + r, lanes), scratch.panel.data, width);
      kernels_.multiply({.rows = x_.rows,
                         .k = u_rows_[l].stride,
                         .width = width,
                         .a = u_rows_[l].data,
                         .a_stride = u_rows_[l].stride,
                         .panel = scratch.panel.data,
                         .c = scratch.sums.Row<float>(0) + r,
                         .c_stride = scratch.sums.stride,
                         .add = true});
    }
  }

  const std::span<const LinearOutput> outputs_;
  const std::int64_t rank_;
  std::int64_t task_rows_[kMostLinears];  // rows of each weight per task
  MatrixView u_rows_[kMostLinears];       // the rows operand scale u of each linear
};

}  // namespace

WorkspaceSize FewRowsWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                               std::int64_t rank) {
  std::int64_t most = 0;
  for (const DotForm form : kDotForms) most = std::max(most, MostDotRows(kernels, form));
  const std::int64_t count = std::min(rows, most);
  Carver shared;
  const FewRowsOperands packed(shared, kernels, count, features, rank);
  Carver worker;
  const FewRowsScratch scratch(worker, kernels, count, features, rank);
  return {shared.bytes(), worker.bytes()};
}

void ForwardFewRows(const Machine& machine, const ops::Linear& op) {
  FewRowsRun(machine, op).Run();
}

}  // namespace qlora::cpu
