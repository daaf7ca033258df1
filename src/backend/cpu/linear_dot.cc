// Linears over few rows, as when text is generated: every row of a weight is read in the order of
// memory, and meets all rows of x as dot products. What an adapter adds, scale u B^T, is a tile of
// Kernels::multiply.
#include <algorithm>
#include <functional>

#include "backend/cpu/linear_plan.h"
#include "backend/cpu/store_tile.h"

namespace qlora::cpu {
namespace {

// Weights per task: about two microseconds at the speed of memory, so that threads share evenly.
constexpr std::int64_t kTaskWeights = 131072;
constexpr std::int64_t kMostTaskRows = 20 * kDotWeightRows;
static_assert(kMostTaskRows % 16 == 0);  // whole vectors of lanes
constexpr std::int64_t kRankRows = 4;    // rows of A per task

// Elements of packed rows of a weight: one long row or many short ones.
std::int64_t PackedElements(std::int64_t cols) {
  return std::max<std::int64_t>(4096, RoundUp(cols, kDotGroup));
}

std::int64_t TaskRows(const LinearView& linear, DotForm form) {
  const bool prepacked = form == DotForm::kPrepacked;
  const std::int64_t step = prepacked ? kPrepackedRows : kDotWeightRows;
  static_assert(kMostTaskRows % kPrepackedRows == 0 && kMostTaskRows % kDotWeightRows == 0);
  return std::clamp(RoundUp(kTaskWeights / linear.weight.cols(), step), step, kMostTaskRows);
}

// DotOperands operands that all workers read.
struct DotOperands {
  DotOperands(Carver& carver, const Kernels& kernels, std::int64_t count, std::int64_t in_features,
              std::int64_t rank) {
    const DType element = ElementType(kernels);
    for (std::size_t f = 0; f < std::size(kDotForms); ++f) {
      const std::int64_t most = MostDotRows(kernels, kDotForms[f]);
      // x meets rows of A, too, however many rows it has.
      const std::int64_t rows = kDotForms[f] == DotForm::kRows ? count : std::min(count, most);
      x[f] = carver.Matrix(element, rows, RoundUp(in_features, kDotGroup));
    }
    u = carver.Matrix(element, count, rank + kMostLinears * (kernels.step - 1));
  }

  MatrixView x[std::size(kDotForms)];
  MatrixView u;  // the rows operand scale u of one linear after the other
};

struct Scratch {
  Scratch(Carver& carver, const Kernels& kernels, std::int64_t count, std::int64_t in_features,
          std::int64_t rank) {
    const std::int64_t length = std::max(in_features, rank);
    scales = carver.Matrix(DType::kF32, 1, WeightRows::ScaleCount(in_features, kDotWeightRows));
    values = carver.Matrix(DType::kF32, 1, length);
    packed = carver.Matrix(ElementType(kernels), 1, PackedElements(length));
    sums = carver.Matrix(DType::kF32, count, kMostTaskRows);
    panel = carver.Matrix(ElementType(kernels), RoundUp(rank, kernels.step), kernels.panel);
    const std::size_t room = count >= kernels.fewest_repacked_rows ? PrepackedRoom(in_features) : 0;
    prepacked = carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(room));
  }

  RowScratch row() const {
    return {scales.Row<float>(0), values.Row<float>(0), static_cast<std::byte*>(packed.data),
            packed.cols, static_cast<std::byte*>(prepacked.data)};
  }

  MatrixView scales;          // of kDotWeightRows rows of a weight
  MatrixView values, packed;  // of one row, or packed of as many as fit
  MatrixView sums;            // (rows of x, rows of a weight)
  MatrixView panel;           // (R, lanes) of B
  MatrixView prepacked;       // 16 rows that are repacked, in bytes
};

// How the outputs of a linear are cut.
struct Share {
  std::int64_t rows;  // of the weight per task
  std::int64_t tasks;
};

class LinearDotRun {
 public:
  LinearDotRun(const Machine& machine, std::span<const LinearView> linears,
               const ConstMatrixView& x, std::span<const LinearOutput> outputs, Store store)
      : machine_(machine),
        kernels_(machine.kernels),
        linears_(linears),
        x_(x),
        outputs_(outputs),
        store_(store),
        rank_(SumOfRanks(linears)) {}

  void Run() {
    Carver carver(machine_.workspace.shared());
    const DotOperands packed(carver, kernels_, x_.rows, x_.cols, rank_);
    DotOperand operand = {.kernels = kernels_, .count = x_.rows, .cols = x_.cols};
    for (std::size_t f = 0; f < std::size(kDotForms); ++f) {
      operand.packed[f] = static_cast<std::byte*>(packed.x[f].data);
      if (Needs(kDotForms[f])) operand.Pack(machine_.context, kDotForms[f], x_);
    }
    if (rank_ > 0) LowRank(operand, packed.u);
    Outputs(operand, packed.u);
  }

 private:
  Scratch ScratchOf(int worker) const {
    Carver carver(machine_.workspace.worker(worker));
    return Scratch(carver, kernels_, x_.rows, x_.cols, rank_);
  }

  DotForm FormOf(const LinearView& linear) const {
    return DotFormOf(kernels_, linear.weight, x_.rows);
  }
  bool Needs(DotForm form) const {
    return std::ranges::any_of(linears_, [&](const LinearView& linear) {
      return FormOf(linear) == form || (form == DotForm::kRows && !linear.lora.a.empty());
    });
  }

  // u = x A^T, written to the outputs and packed.
  void LowRank(const DotOperand& x, const MatrixView& packed) const {
    const std::int64_t pieces = Pieces(MostRank(), kRankRows);
    const auto task = [&](std::int64_t index, int worker) {
      const auto l = static_cast<std::size_t>(index / pieces);
      const MatrixView& u = outputs_[l].u;
      const std::int64_t r = index % pieces * kRankRows;
      if (r >= u.cols) return;
      const WeightView a = {.dense = linears_[l].lora.a, .quantized = {}};
      DotWeightRows(x, a, r, std::min(kRankRows, u.cols - r), ScratchOf(worker).row(),
                    u.Row<float>(0) + r, u.stride);
    };
    machine_.context.ParallelFor(static_cast<std::int64_t>(linears_.size()) * pieces,
                                 std::ref(task));
    for (std::size_t l = 0; l < linears_.size(); ++l) {
      const LoraView& lora = linears_[l].lora;
      if (lora.a.empty()) continue;
      kernels_.pack_rows(outputs_[l].u, lora.scale, RowsOfU(packed, l), StrideOfU(l));
    }
  }
  std::int64_t MostRank() const {
    std::int64_t rank = 0;
    for (const LinearView& linear : linears_) rank = std::max(rank, linear.lora.a.rows);
    return rank;
  }
  std::int64_t StrideOfU(std::size_t linear) const {
    return RoundUp(linears_[linear].lora.a.rows, kernels_.step);
  }
  std::byte* RowsOfU(const MatrixView& packed, std::size_t linear) const {
    std::int64_t elements = 0;
    for (std::size_t l = 0; l < linear; ++l) elements += x_.rows * StrideOfU(l);
    return static_cast<std::byte*>(packed.data) +
           static_cast<std::size_t>(elements) * kernels_.bytes;
  }

  void Outputs(const DotOperand& x, const MatrixView& u) const {
    std::int64_t tasks = 0;
    Share shares[kMostLinears];
    for (std::size_t l = 0; l < linears_.size(); ++l) {
      const std::int64_t rows = TaskRows(linears_[l], FormOf(linears_[l]));
      shares[l] = {rows, Pieces(linears_[l].weight.rows(), rows)};
      tasks += shares[l].tasks;
    }
    // Tasks that are handed out in turn lie far apart, so that each worker mostly reads on where it
    // was: memory is fastest in long streams.
    const std::int64_t streams = machine_.context.threads();
    const std::int64_t length = Pieces(tasks, streams);
    const auto task = [&](std::int64_t turn, int worker) {
      std::int64_t index = turn % streams * length + turn / streams;
      if (index >= tasks) return;
      std::size_t l = 0;
      for (; index >= shares[l].tasks; ++l) index -= shares[l].tasks;
      OutputRows(l, index * shares[l].rows, shares[l].rows, x, u, ScratchOf(worker));
    };
    machine_.context.ParallelFor(streams * length, std::ref(task));
  }

  // Columns [o, o + most) of y.
  void OutputRows(std::size_t l, std::int64_t o, std::int64_t most, const DotOperand& x,
                  const MatrixView& u, const Scratch& scratch) const {
    const LinearView& linear = linears_[l];
    const std::int64_t rows = std::min(most, linear.weight.rows() - o);
    DotWeightRows(x, linear.weight, o, rows, scratch.row(), scratch.sums.Row<float>(0),
                  scratch.sums.stride);
    if (!linear.lora.a.empty()) AddLowRankPart(l, o, rows, u, scratch);
    for (std::int64_t m = 0; m < x.count && !linear.bias.empty(); ++m) {
      float* sums = scratch.sums.Row<float>(m);
      for (std::int64_t r = 0; r < rows; ++r) sums[r] += linear.bias.Row<float>(0)[o + r];
    }
    StoreTile(scratch.sums.Row<float>(0), scratch.sums.stride, store_ == Store::kAdd,
              Block(outputs_[l].y, 0, x.count, o, rows));
  }

  // sums += scale u B^T, with rows of B as lanes; those that fill up the last vector are added to
  // sums that nobody reads.
  void AddLowRankPart(std::size_t l, std::int64_t o, std::int64_t rows, const MatrixView& u,
                      const Scratch& scratch) const {
    const ConstMatrixView& b = linears_[l].lora.b;
    for (std::int64_t r = 0; r < rows; r += kernels_.panel) {
      const std::int64_t lanes = std::min(kernels_.panel, rows - r);
      const std::int64_t width = RoundUp(lanes, kernels_.vector);
      kernels_.pack_panel_of_rows(Rows(b, o + r, lanes), scratch.panel.data, width);
      kernels_.multiply({.rows = x_.rows,
                         .k = StrideOfU(l),
                         .width = width,
                         .a = RowsOfU(u, l),
                         .a_stride = StrideOfU(l),
                         .panel = scratch.panel.data,
                         .c = scratch.sums.Row<float>(0) + r,
                         .c_stride = scratch.sums.stride,
                         .add = true});
    }
  }

  const Machine& machine_;
  const Kernels& kernels_;
  std::span<const LinearView> linears_;
  const ConstMatrixView& x_;
  std::span<const LinearOutput> outputs_;
  const Store store_;
  const std::int64_t rank_;
};

}  // namespace

bool UsesDots(const Kernels& kernels, std::span<const LinearView> linears,
              const ConstMatrixView& x) {
  const auto fits = [&](const LinearView& linear) {
    const DotForm form = DotFormOf(kernels, linear.weight, x.rows);
    return x.rows <= MostDotRows(kernels, form) && linear.lora.dropout == 0;
  };
  return x.rows > 0 && std::ranges::all_of(linears, fits);
}

WorkspaceSize DotWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                           std::int64_t rank) {
  Carver shared;
  std::int64_t most = 0;
  for (const DotForm form : kDotForms) most = std::max(most, MostDotRows(kernels, form));
  const std::int64_t count = std::min(rows, most);
  const DotOperands packed(shared, kernels, count, features, rank);
  Carver worker;
  const Scratch scratch(worker, kernels, count, features, rank);
  return {shared.bytes(), worker.bytes()};
}

void DotForward(const Machine& machine, std::span<const LinearView> linears,
                const ConstMatrixView& x, std::span<const LinearOutput> outputs, Store store) {
  machine.workspace.Check(DotWorkspace(machine.kernels, x.rows, x.cols, SumOfRanks(linears)));
  LinearDotRun(machine, linears, x, outputs, store).Run();
}

}  // namespace qlora::cpu
