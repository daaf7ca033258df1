// The rows of x are the lanes of all products: x is packed once for a group of linears, a weight is
// decoded row by row as it lies, and a tile of sums is y transposed.
#include <algorithm>
#include <functional>

#include "backend/cpu/linear.h"
#include "backend/cpu/linear_plan.h"
#include "backend/cpu/store_tile.h"

namespace qlora::cpu {
namespace {

// A row chunk in panels of Kernels::panel lanes, the last one narrower.
struct Lanes {
  const Kernels& kernels;
  std::int64_t rows;

  std::int64_t panels() const { return Pieces(rows, kernels.panel); }
  std::int64_t first(std::int64_t panel) const { return panel * kernels.panel; }
  std::int64_t count(std::int64_t panel) const {
    return std::min(kernels.panel, rows - first(panel));
  }
  std::int64_t width(std::int64_t panel) const { return RoundUp(count(panel), kernels.vector); }
  std::int64_t total() const { return RoundUp(rows, kernels.vector); }
  // Offset in bytes of value k of a panel in the packed operand with `depth` values of k.
  std::size_t Offset(std::int64_t panel, std::int64_t depth, std::int64_t k) const {
    const std::int64_t padded = RoundUp(depth, kernels.step);
    return static_cast<std::size_t>(first(panel) * padded + k * width(panel)) * kernels.bytes;
  }
};

// Packed operands of one group over one row chunk.
struct ForwardOperands {
  ForwardOperands(Carver& carver, const Kernels& kernels, std::int64_t rows,
                  std::int64_t in_features, std::int64_t rank) {
    const Lanes lanes{kernels, rows};
    const DType element = ElementType(kernels);
    x = carver.Matrix(element, lanes.total(), RoundUp(in_features, kernels.step));
    u = carver.Matrix(element, lanes.total(), rank + kMostLinears * (kernels.step - 1));
  }

  MatrixView x;  // panels of x
  MatrixView u;  // panels of u of every linear, one linear after the other
};

class LinearForwardRun {
 public:
  LinearForwardRun(const Machine& machine, std::span<const LinearView> linears,
                   const ConstMatrixView& x, std::span<const LinearOutput> outputs, Store store)
      : machine_(machine),
        kernels_(machine.kernels),
        linears_(linears),
        x_(x),
        outputs_(outputs),
        store_(store),
        rank_(SumOfRanks(linears)) {}

  void Run() {
    for (row_ = 0; row_ < x_.rows; row_ += kRowChunk) {
      rows_ = std::min(kRowChunk, x_.rows - row_);
      Carver carver(machine_.workspace.shared());
      const ForwardOperands packed(carver, kernels_, rows_, x_.cols, rank_);
      x_panels_ = static_cast<std::byte*>(packed.x.data);
      u_panels_ = static_cast<std::byte*>(packed.u.data);
      PackInput();
      if (rank_ > 0) LowRank();
      Outputs();
    }
  }

 private:
  Lanes lanes() const { return {kernels_, rows_}; }
  LinearScratch Scratch(int worker) const {
    Carver carver(machine_.workspace.worker(worker));
    return LinearScratch(carver, kernels_, rows_, x_.cols, rank_);
  }
  void Parallel(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task) const {
    machine_.context.ParallelFor(tasks, task);
  }

  void PackInput() const {
    const std::int64_t depths = Pieces(x_.cols, kForwardDepth);
    const auto task = [&](std::int64_t index, int) {
      const std::int64_t panel = index / depths;
      const std::int64_t k = index % depths * kForwardDepth;
      const ConstMatrixView in = Block(x_, row_ + lanes().first(panel), lanes().count(panel), k,
                                       std::min(kForwardDepth, x_.cols - k));
      kernels_.pack_panel_of_rows(in, x_panels_ + lanes().Offset(panel, x_.cols, k),
                                  lanes().width(panel));
    };
    Parallel(lanes().panels() * depths, std::ref(task));
  }

  // Start of the panels of u of a linear.
  std::byte* UPanels(std::size_t linear) const {
    std::int64_t depth = 0;
    for (std::size_t l = 0; l < linear; ++l) {
      depth += RoundUp(linears_[l].lora.a.rows, kernels_.step);
    }
    return u_panels_ + static_cast<std::size_t>(depth * lanes().total()) * kernels_.bytes;
  }

  // u = drop(x) A^T, panel by panel; written to the outputs and packed for Outputs().
  void LowRank() const {
    const auto linears = static_cast<std::int64_t>(linears_.size());
    const auto task = [&](std::int64_t index, int worker) {
      const auto l = static_cast<std::size_t>(index % linears);
      if (linears_[l].lora.a.empty()) return;
      LowRankPanel(linears_[l].lora, index / linears, Scratch(worker), UPanels(l), outputs_[l].u);
    };
    Parallel(linears * lanes().panels(), std::ref(task));
  }

  void LowRankPanel(const LoraView& lora, std::int64_t panel, const LinearScratch& scratch,
                    std::byte* u_panels, const MatrixView& u) const {
    const std::int64_t first = row_ + lanes().first(panel);
    const std::int64_t count = lanes().count(panel);
    const std::int64_t width = lanes().width(panel);
    const std::int64_t rank = lora.a.rows;
    for (std::int64_t k = 0; k < x_.cols; k += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, x_.cols - k);
      const std::byte* x_panel = x_panels_ + lanes().Offset(panel, x_.cols, k);
      if (lora.dropout > 0) {
        const MatrixView dropped = MakeView(scratch.values.Row<float>(0), count, depth);
        DropInputs(lora, x_, first, k, dropped);
        kernels_.pack_panel_of_rows(dropped, scratch.packed_panel(), width);
        x_panel = scratch.packed_panel();
      }
      for (std::int64_t r = 0; r < rank; r += kWeightRows) {
        const std::int64_t rows = std::min(kWeightRows, rank - r);
        kernels_.pack_rows(Block(lora.a, r, rows, k, depth), 1, scratch.packed_rows(),
                           scratch.rows.stride);
        kernels_.multiply({.rows = rows,
                           .k = RoundUp(depth, kernels_.step),
                           .width = width,
                           .a = scratch.packed_rows(),
                           .a_stride = scratch.rows.stride,
                           .panel = x_panel,
                           .c = scratch.sums() + r * width,
                           .c_stride = width,
                           .add = k > 0});
      }
    }
    const ConstMatrixView sums = {scratch.sums(), DType::kF32, rank, count, width};
    StoreTransposed(scratch.sums(), width, nullptr, false, Rows(u, first, count));
    kernels_.pack_panel_of_columns(sums, u_panels + lanes().Offset(panel, rank, 0), width);
  }

  // y = x W^T + bias + scale u B^T, kWeightRows columns at a time.
  void Outputs() const {
    std::int64_t tasks = 0;
    for (const LinearView& linear : linears_) tasks += Pieces(linear.weight.rows(), kWeightRows);
    const auto task = [&](std::int64_t index, int worker) {
      std::size_t l = 0;
      for (; index >= Pieces(linears_[l].weight.rows(), kWeightRows); ++l) {
        index -= Pieces(linears_[l].weight.rows(), kWeightRows);
      }
      OutputBlock(l, index * kWeightRows, Scratch(worker));
    };
    Parallel(tasks, std::ref(task));
  }

  void OutputBlock(std::size_t l, std::int64_t o, const LinearScratch& scratch) const {
    const LinearView& linear = linears_[l];
    const std::int64_t rows = std::min(kWeightRows, linear.weight.rows() - o);
    const WeightRows weight(linear.weight, o, rows, scratch.scales.Row<float>(0));
    if (weight.is_chunked() && lanes().panels() == 1) {
      kernels_.multiply_chunks(weight.chunks(), {.rows = rows,
                                                 .k = x_.cols,
                                                 .width = lanes().total(),
                                                 .panel = x_panels_,
                                                 .c = scratch.sums(),
                                                 .c_stride = lanes().total()});
    } else {
      MultiplyWeight(weight, rows, scratch);
    }
    const LoraView& lora = linear.lora;
    for (std::int64_t r = 0; r < lora.a.rows; r += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, lora.a.rows - r);
      kernels_.pack_rows(Block(lora.b, o, rows, r, depth), lora.scale, scratch.packed_rows(),
                         scratch.rows.stride);
      MultiplyBlock(scratch, rows, depth, UPanels(l), lora.a.rows, r, true);
    }
    const float* bias = linear.bias.empty() ? nullptr : linear.bias.Row<float>(0) + o;
    StoreTransposed(scratch.sums(), lanes().total(), bias, store_ == Store::kAdd,
                    Block(outputs_[l].y, row_, rows_, o, rows));
  }

  // sums(rows, lanes) = weight rows * x, a block of k after the other.
  void MultiplyWeight(const WeightRows& weight, std::int64_t rows,
                      const LinearScratch& scratch) const {
    for (std::int64_t k = 0; k < x_.cols; k += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, x_.cols - k);
      weight.Pack(kernels_, k, depth, scratch.values.Row<float>(0), scratch.packed_rows(),
                  scratch.rows.stride);
      MultiplyBlock(scratch, rows, depth, x_panels_, x_.cols, k, k > 0);
    }
  }

  // sums(rows, lanes) = [sums +] packed rows * values [k, k + depth) of all panels.
  void MultiplyBlock(const LinearScratch& scratch, std::int64_t rows, std::int64_t depth,
                     const std::byte* panels, std::int64_t panel_depth, std::int64_t k,
                     bool add) const {
    for (std::int64_t p = 0; p < lanes().panels(); ++p) {
      // The panel that comes next, of these values of k or of those after them.
      const bool last = p + 1 == lanes().panels();
      const std::int64_t next = last ? 0 : p + 1;
      const std::int64_t next_k = last ? k + depth : k;
      const std::int64_t next_depth = std::min(depth, panel_depth - next_k);
      const std::size_t bytes =
          static_cast<std::size_t>(next_depth * lanes().width(next)) * kernels_.bytes;
      kernels_.multiply({.rows = rows,
                         .k = RoundUp(depth, kernels_.step),
                         .width = lanes().width(p),
                         .a = scratch.packed_rows(),
                         .a_stride = scratch.rows.stride,
                         .panel = panels + lanes().Offset(p, panel_depth, k),
                         .c = scratch.sums() + lanes().first(p),
                         .c_stride = lanes().total(),
                         .add = add,
                         .fetch = panels + lanes().Offset(next, panel_depth, next_k),
                         .fetch_lines = static_cast<std::int64_t>(bytes / kCacheLine),
                         .fetch_stride = kCacheLine});
    }
  }

  const Machine& machine_;
  const Kernels& kernels_;
  std::span<const LinearView> linears_;
  const ConstMatrixView& x_;
  std::span<const LinearOutput> outputs_;
  const Store store_;
  const std::int64_t rank_;
  // The current row chunk.
  std::int64_t row_ = 0;
  std::int64_t rows_ = 0;
  std::byte* x_panels_ = nullptr;
  std::byte* u_panels_ = nullptr;
};

}  // namespace

WorkspaceSize ForwardWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                               std::int64_t rank) {
  const std::int64_t chunk = std::min(rows, kRowChunk);
  Carver shared;
  const ForwardOperands packed(shared, kernels, chunk, features, rank);
  Carver worker;
  const LinearScratch scratch(worker, kernels, chunk, features, rank);
  return {shared.bytes(), worker.bytes()};
}

void LinearForward(const Machine& machine, std::span<const LinearView> linears, ConstMatrixView x,
                   std::span<const LinearOutput> outputs, Store store) {
  CheckGroup(linears);
  if (UsesDots(machine.kernels, linears, x)) return DotForward(machine, linears, x, outputs, store);
  machine.workspace.Check(ForwardWorkspace(machine.kernels, x.rows, x.cols, SumOfRanks(linears)));
  LinearForwardRun(machine, linears, x, outputs, store).Run();
}

}  // namespace qlora::cpu
