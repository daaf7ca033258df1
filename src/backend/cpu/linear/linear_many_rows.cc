// Linears over many rows. The rows of x are the lanes of all products: x is packed once for a group
// of linears, a weight is decoded row by row in the order in which it is stored, and a tile of sums
// is y transposed.
//
//                     rows of x: panels of Kernels::panel lanes
//                     +--------+--------+-----+
//                   k | x      |        |     |   packed once, for up to kRowChunk rows
//         k           +--------+--------+-----+
//       +---------+   +--------+--------+-----+
//     o | weight  |   | sums                  |   + scale B u, then stored as columns of y;
//       +---------+   +-----------------------+   kWeightRows rows of the weight are a task
#include <algorithm>
#include <functional>

#include "backend/cpu/dropout.h"
#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/linear/linear_blocks.h"

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
  std::int64_t Offset(std::int64_t panel, std::int64_t depth, std::int64_t k) const {
    const std::int64_t padded = RoundUp(depth, kernels.step);
    return (first(panel) * padded + k * width(panel)) * kernels.bytes;
  }
};

// A packed operand: all lanes of `depth` values of k.
struct LanePanels {
  std::byte* data;
  std::int64_t depth;
};

// Packed operands of one group over one row chunk; coded: of weights in 8 bits.
struct ForwardOperands {
  ForwardOperands(Carver& carver, const Kernels& kernels, bool coded, std::int64_t rows,
                  std::int64_t in_features, std::int64_t rank) {
    const Lanes lanes{kernels, rows};
    const DType element = ElementType(kernels);
    if (coded) {
      codes = CodedPanels(carver, rows, in_features, rows <= kernels.int8->most_dots);
    } else {
      x = carver.Matrix(element, lanes.total(), RoundUp(in_features, kernels.step));
    }
    u = carver.Matrix(element, lanes.total(), rank + kMostLinears * (kernels.step - 1));
  }

  MatrixView x;  // panels of x
  CodedPanels codes;
  MatrixView u;  // panels of u of every linear, one linear after the other
};

class ManyRowsRun : LinearRun {
 public:
  ManyRowsRun(const Machine& machine, const ops::Linear& op)
      : LinearRun(machine, op),
        outputs_(op.outputs),
        rank_(LargestRank(op)),
        coded_(AreCoded(machine.kernels, op.linears)) {}

  void Run() {
    for (row_ = 0; row_ < x_.rows; row_ += kRowChunk) {
      rows_ = std::min(kRowChunk, x_.rows - row_);
      Carver carver(machine_.workspace.shared());
      const ForwardOperands packed(carver, kernels_, coded_, rows_, x_.cols, rank_);
      codes_ = packed.codes;
      if (!coded_) x_panels_ = {packed.x.Row<std::byte>(0), x_.cols};
      std::byte* u = packed.u.Row<std::byte>(0);
      for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
        u_panels_[l] = {u, lora(l).a.rows};
        u += RoundUp(u_panels_[l].depth, kernels_.step) * lanes().total() * kernels_.bytes;
      }
      PackInput();
      if (rank_ > 0) LowRank();
      Outputs();
    }
  }

 private:
  Lanes lanes() const { return {kernels_, rows_}; }
  // Between the sums of two rows of a weight.
  std::int64_t SumStride() const { return coded_ ? codes_.lanes() : lanes().total(); }
  LinearScratch Scratch(int worker) const {
    Carver carver(machine_.workspace.worker(worker));
    return LinearScratch(carver, kernels_, rows_, x_.cols, rank_);
  }

  void PackInput() const {
    if (coded_) {
      const auto code = [&](std::int64_t panel, int) {
        const CodedPanel to = codes_[panel];
        PackCodes(Rows(x_, row_ + to.first, to.rows), nullptr, CodeOrder::kPaired, to);
      };
      return machine_.context.ParallelFor(codes_.count(), std::ref(code));
    }
    const std::int64_t depths = Pieces(x_.cols, kForwardDepth);
    const auto task = [&](std::int64_t index, int) {
      const std::int64_t panel = index / depths;
      const std::int64_t k = index % depths * kForwardDepth;
      const ConstMatrixView in = Block(x_, row_ + lanes().first(panel), lanes().count(panel), k,
                                       std::min(kForwardDepth, x_.cols - k));
      kernels_.pack_panel_of_rows(in, x_panels_.data + lanes().Offset(panel, x_.cols, k),
                                  lanes().width(panel));
    };
    machine_.context.ParallelFor(lanes().panels() * depths, std::ref(task));
  }

  // u = drop(x) A^T, panel by panel; written to the outputs and packed for Outputs().
  void LowRank() const {
    const std::int64_t linears = std::ssize(linears_);
    const auto task = [&](std::int64_t index, int worker) {
      const std::int64_t l = index % linears;
      if (has_lora(l)) LowRankPanel(l, index / linears, Scratch(worker));
    };
    machine_.context.ParallelFor(linears * lanes().panels(), std::ref(task));
  }

  void LowRankPanel(std::int64_t l, std::int64_t panel, const LinearScratch& scratch) const {
    const std::int64_t first = row_ + lanes().first(panel);
    const std::int64_t count = lanes().count(panel);
    const std::int64_t width = lanes().width(panel);
    const std::int64_t rank = lora(l).a.rows;
    for (std::int64_t k = 0; k < x_.cols; k += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, x_.cols - k);
      const std::byte* x_panel = scratch.panel.Row<std::byte>(0);
      if (lora(l).dropout > 0) {
        const MatrixView dropped = MakeView(scratch.floats(), count, depth);
        DropInputs(lora(l), x_, first, k, dropped);
        kernels_.pack_panel_of_rows(dropped, scratch.panel.data, width);
      } else if (coded_) {
        kernels_.pack_panel_of_rows(Block(x_, first, count, k, depth), scratch.panel.data, width);
      } else {
        x_panel = x_panels_.data + lanes().Offset(panel, x_.cols, k);
      }
      for (std::int64_t r = 0; r < rank; r += kWeightRows) {
        const std::int64_t rows = std::min(kWeightRows, rank - r);
        kernels_.pack_rows(Block(lora(l).a, r, rows, k, depth), 1, scratch.rows.data,
                           scratch.rows.stride);
        kernels_.multiply({.rows = rows,
                           .k = RoundUp(depth, kernels_.step),
                           .width = width,
                           .a = scratch.rows.data,
                           .a_stride = scratch.rows.stride,
                           .panel = x_panel,
                           .c = scratch.sums() + r * width,
                           .c_stride = width,
                           .add = k > 0});
      }
    }
    const ConstMatrixView sums = {scratch.sums(), DType::kF32, rank, count, width};
    StoreTransposed(scratch.sums(), width, nullptr, false, Rows(outputs_[l].u, first, count));
    kernels_.pack_panel_of_columns(sums, u_panels_[l].data + lanes().Offset(panel, rank, 0), width);
  }

  // y = x W^T + bias + scale u B^T, some columns at a time.
  void Outputs() const {
    ForEachPart([&](std::int64_t l) { return Pieces(features(l), task_rows(l)); },
                [&](std::int64_t l, std::int64_t part, int worker) {
                  OutputBlock(l, part * task_rows(l), Scratch(worker));
                });
  }

  // Rows of a weight per task. Those of a weight in 8 bits, of which nothing that is computed
  // depends on the cut, are more if there are enough for all workers.
  std::int64_t task_rows(std::int64_t l) const {
    const bool many = features(l) >= 2 * machine_.context.threads() * CodedRows::kMost &&
                      LinearScratch::HasPanelFor(CodedRows::kMost, x_.cols);
    return coded_ && many ? CodedRows::kMost : kWeightRows;
  }

  void OutputBlock(std::int64_t l, std::int64_t o, const LinearScratch& scratch) const {
    const LinearView& linear = linears_[l];
    const std::int64_t rows = std::min(task_rows(l), features(l) - o);
    if (coded_) {
      const CodedRows weight(linear.weight, o, rows, scratch.factors(rows, x_.cols));
      MultiplyCodedRows(*kernels_.int8, weight, codes_, Rows(x_, row_, rows_), scratch.codes(),
                        scratch.sums(), SumStride());
    } else {
      const WeightRows weight(linear.weight, o, rows, scratch.scales.Row<float>(0));
      MultiplyWeight(weight, rows, scratch);
    }
    for (std::int64_t first = 0; first < rows; first += kWeightRows) {
      AddLowRank(l, o, {first, std::min(kWeightRows, rows - first)}, scratch);
    }
    const float* bias = linear.bias.empty() ? nullptr : linear.bias.Row<float>(0) + o;
    StoreTransposed(scratch.sums(), SumStride(), bias, store_ == Store::kAdd,
                    Block(outputs_[l].y, row_, rows_, o, rows));
  }

  // Rows [first, first + count) of the sums of a task.
  struct SumRows {
    std::int64_t first;
    std::int64_t count;
  };

  // sums += scale B u for some rows of B, which are counted from row o.
  void AddLowRank(std::int64_t l, std::int64_t o, SumRows rows,
                  const LinearScratch& scratch) const {
    for (std::int64_t r = 0; r < lora(l).a.rows; r += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, lora(l).a.rows - r);
      kernels_.pack_rows(Block(lora(l).b, o + rows.first, rows.count, r, depth), lora(l).scale,
                         scratch.rows.data, scratch.rows.stride);
      MultiplyBlock(scratch, rows, u_panels_[l], {r, depth}, true);
    }
  }

  // sums(rows, lanes) = weight rows * x, one block of k after the other.
  void MultiplyWeight(const WeightRows& weight, std::int64_t rows,
                      const LinearScratch& scratch) const {
    const bool narrow = lanes().panels() == 1;
    if (narrow && weight.is_chunked() && kernels_.multiply_chunks != nullptr) {
      return kernels_.multiply_chunks(weight.chunks(), {.rows = rows,
                                                        .k = x_.cols,
                                                        .width = lanes().total(),
                                                        .panel = x_panels_.data,
                                                        .c = scratch.sums(),
                                                        .c_stride = lanes().total()});
    }
    for (std::int64_t k = 0; k < x_.cols; k += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, x_.cols - k);
      weight.Pack(kernels_, k, depth, scratch.floats(), scratch.rows.data, scratch.rows.stride);
      MultiplyBlock(scratch, {0, rows}, x_panels_, {k, depth}, k > 0);
    }
  }

  // Values [first, first + depth) of k.
  struct Depth {
    std::int64_t first;
    std::int64_t depth;
  };

  // sums(rows, lanes) = [sums +] packed rows * values of k of all panels.
  void MultiplyBlock(const LinearScratch& scratch, SumRows rows, const LanePanels& panels, Depth k,
                     bool add) const {
    const auto panel_at = [&](std::int64_t panel, std::int64_t first) {
      return panels.data + lanes().Offset(panel, panels.depth, first);
    };
    for (std::int64_t p = 0; p < lanes().panels(); ++p) {
      // The panel that comes next, of these values of k or of those after them, is prefetched.
      const bool last = p + 1 == lanes().panels();
      const std::int64_t next = last ? 0 : p + 1;
      const std::int64_t next_k = last ? k.first + k.depth : k.first;
      const std::int64_t next_depth = std::min(k.depth, panels.depth - next_k);
      const std::int64_t next_bytes = next_depth * lanes().width(next) * kernels_.bytes;
      kernels_.multiply({.rows = rows.count,
                         .k = RoundUp(k.depth, kernels_.step),
                         .width = lanes().width(p),
                         .a = scratch.rows.data,
                         .a_stride = scratch.rows.stride,
                         .panel = panel_at(p, k.first),
                         .c = scratch.sums() + rows.first * SumStride() + lanes().first(p),
                         .c_stride = SumStride(),
                         .add = add,
                         .fetch = panel_at(next, next_k),
                         .fetch_lines = next_bytes / kCacheLine,
                         .fetch_stride = kCacheLine});
    }
  }

  const std::span<const LinearOutput> outputs_;
  const std::int64_t rank_;
  const bool coded_;
  // The current row chunk.
  std::int64_t row_ = 0;
  std::int64_t rows_ = 0;
  LanePanels x_panels_ = {};
  CodedPanels codes_ = {};
  LanePanels u_panels_[kMostLinears] = {};
};

}  // namespace

WorkspaceSize ManyRowsWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                                std::int64_t rank) {
  const std::int64_t chunk = std::min(rows, kRowChunk);
  Carver worker;
  const LinearScratch scratch(worker, kernels, chunk, features, rank);
  Carver shared;
  const ForwardOperands packed(shared, kernels, false, chunk, features, rank);
  const WorkspaceSize size = {shared.bytes(), worker.bytes()};
  if (kernels.int8 == nullptr) return size;
  // Dense weights need the other operands, too, at another time.
  Carver coded;
  const ForwardOperands codes(coded, kernels, true, chunk, features, rank);
  return Max(size, {coded.bytes(), worker.bytes()});
}

void ForwardManyRows(const Machine& machine, const ops::Linear& op) {
  ManyRowsRun(machine, op).Run();
}

}  // namespace qlora::cpu
