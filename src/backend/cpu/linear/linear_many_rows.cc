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
#include <vector>

#include "backend/cpu/dropout.h"
#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/int8/coded_product.h"
#include "backend/cpu/linear/linear_blocks.h"
#include "backend/cpu/row_ops.h"
#include "base/check.h"

namespace qlora::cpu {
namespace {

// A row chunk in panels of Kernels::panel lanes, of which the last one of each adapter may be
// narrower.
class Lanes {
 public:
  // Ranges of rows of the chunk, one after the other. coded: each begins where that of CodedPanels
  // does.
  Lanes(const Kernels& kernels, bool coded, std::span<const IndexRange> ranges)
      : kernels_(&kernels) {
    for (std::int64_t r = 0; r < std::ssize(ranges); ++r) {
      for (std::int64_t row = ranges[r].begin; row < ranges[r].end; row += kernels.panel) {
        const std::int64_t count = std::min(kernels.panel, ranges[r].end - row);
        panels_.push_back({row, count, r, total_});
        total_ += RoundUp(count, kernels.vector);
      }
      if (coded) total_ = RoundUp(total_, kInt8Vector);
    }
  }

  std::int64_t panels() const { return std::ssize(panels_); }
  std::int64_t first(std::int64_t panel) const { return panels_[panel].first; }
  std::int64_t count(std::int64_t panel) const { return panels_[panel].count; }
  std::int64_t range(std::int64_t panel) const { return panels_[panel].range; }
  // The first lane of a panel.
  std::int64_t lane(std::int64_t panel) const { return panels_[panel].lane; }
  std::int64_t width(std::int64_t panel) const { return RoundUp(count(panel), kernels_->vector); }
  std::int64_t total() const { return total_; }
  // Offset in bytes of value k of a panel in a packed operand with `room` values of k.
  std::int64_t Offset(std::int64_t panel, std::int64_t room, std::int64_t k) const {
    return (lane(panel) * room + k * width(panel)) * kernels_->bytes;
  }

 private:
  struct Panel {
    std::int64_t first;
    std::int64_t count;
    std::int64_t range;
    std::int64_t lane;
  };

  const Kernels* kernels_;
  std::vector<Panel> panels_;
  std::int64_t total_ = 0;
};

// Those cuts of rows into ranges that take the most lanes and panels: all but the last have one
// row.
std::vector<IndexRange> WidestRanges(std::int64_t rows, std::int64_t ranges) {
  std::vector<IndexRange> widest;
  for (std::int64_t row = 0; row < std::min(rows, ranges) - 1; ++row) {
    widest.push_back({row, row + 1});
  }
  widest.push_back({std::ssize(widest), rows});
  return widest;
}

// A packed operand: values [first, first + depth) of k of the `room` that each lane has.
struct LanePanels {
  std::byte* data;
  std::int64_t room;  // a multiple of Kernels::step, as is first
  std::int64_t first;
  std::int64_t depth;
};

// Packed operands of one group over one row chunk; coded: of weights in 8 bits.
struct ForwardOperands {
  ForwardOperands(Carver& carver, const Kernels& kernels, bool coded,
                  std::span<const IndexRange> ranges, std::int64_t in_features, std::int64_t rank)
      : lanes(kernels, coded, ranges) {
    const DType element = ElementType(kernels);
    if (coded) {
      const bool are_few = ranges.size() == 1 && ranges[0].size() <= kernels.int8->most_dots;
      codes = CodedPanels(carver, ranges, in_features, are_few);
    } else {
      x = carver.Matrix(element, lanes.total(), RoundUp(in_features, kernels.step));
    }
    const std::int64_t room = RoundUp(rank + kMostLinears * (kernels.step - 1), kernels.step);
    u = carver.Matrix(element, lanes.total(), room);
  }

  Lanes lanes;
  MatrixView x;  // panels of x
  CodedPanels codes;
  MatrixView u;  // panels of u; in each, every linear with the rank that it has there
};

class ManyRowsRun : LinearRun {
 public:
  ManyRowsRun(const Machine& machine, const ops::Linear& op)
      : LinearRun(machine, op),
        outputs_(op.outputs),
        ranges_(op.ranges),
        rank_(LargestRank(op)),
        coded_(AreCoded(machine.kernels, op.linears)),
        lanes_(machine.kernels, coded_, {}) {
    // Ranges are of rows of the one chunk.
    QLORA_DCHECK(ranges_.empty() || op.x.rows <= kRowChunk);
  }

  void Run() {
    for (row_ = 0; row_ < x_.rows; row_ += kRowChunk) {
      rows_ = std::min(kRowChunk, x_.rows - row_);
      Carver carver(machine_.workspace.shared());
      const ForwardOperands packed(carver, kernels_, coded_, RowRanges(), x_.cols, rank_);
      lanes_ = packed.lanes;
      codes_ = packed.codes;
      if (!coded_) x_panels_ = {packed.x.Row<std::byte>(0), packed.x.cols, 0, x_.cols};
      u_panels_ = {packed.u.Row<std::byte>(0), packed.u.cols, 0, 0};
      PackInput();
      if (rank_ > 0) LowRank();
      Outputs();
    }
  }

 private:
  // The rows of the chunk, those of each adapter apart.
  std::vector<IndexRange> RowRanges() const {
    if (ranges_.empty()) return {{0, rows_}};
    std::vector<IndexRange> ranges;
    for (const LoraRows& range : ranges_) ranges.push_back({range.begin, range.begin + range.rows});
    return ranges;
  }
  // The adapter of a linear for a range of rows.
  const LoraView& LoraOf(std::int64_t l, std::int64_t range) const {
    return ranges_.empty() ? lora(l) : ranges_[range].loras[l];
  }
  // u of a linear for a range of rows: behind those of the linears before.
  LanePanels LowRankPanels(std::int64_t l, std::int64_t range) const {
    LanePanels u = u_panels_;
    for (std::int64_t i = 0; i < l; ++i) u.first += RoundUp(LoraOf(i, range).a.rows, kernels_.step);
    u.depth = LoraOf(l, range).a.rows;
    return u;
  }
  std::byte* At(const LanePanels& operand, std::int64_t panel, std::int64_t k) const {
    return operand.data + lanes_.Offset(panel, operand.room, operand.first + k);
  }
  LinearScratch Scratch(int worker) const {
    Carver carver(machine_.workspace.worker(worker));
    return LinearScratch(carver, kernels_, lanes_.total(), x_.cols, rank_);
  }

  void PackInput() const {
    if (coded_) {
      const auto code = [&](std::int64_t panel, int) {
        const CodedPanel to = codes_[panel];
        PackCodes(Rows(x_, row_ + to.row, to.rows), nullptr, CodeOrder::kPaired, to);
      };
      return machine_.context.ParallelFor(codes_.count(), std::ref(code));
    }
    const std::int64_t depths = Pieces(x_.cols, kForwardDepth);
    const auto task = [&](std::int64_t index, int) {
      const std::int64_t panel = index / depths;
      const std::int64_t k = index % depths * kForwardDepth;
      const ConstMatrixView in = Block(x_, row_ + lanes_.first(panel), lanes_.count(panel), k,
                                       std::min(kForwardDepth, x_.cols - k));
      kernels_.pack_panel_of_rows(in, At(x_panels_, panel, k), lanes_.width(panel));
    };
    machine_.context.ParallelFor(lanes_.panels() * depths, std::ref(task));
  }

  // u = drop(x) A^T, panel by panel; written to the outputs and packed for Outputs().
  void LowRank() const {
    const std::int64_t linears = std::ssize(linears_);
    const auto task = [&](std::int64_t index, int worker) {
      const std::int64_t l = index % linears;
      const std::int64_t panel = index / linears;
      const LoraView& adapter = LoraOf(l, lanes_.range(panel));
      if (!adapter.a.empty()) LowRankPanel(l, adapter, panel, Scratch(worker));
    };
    machine_.context.ParallelFor(linears * lanes_.panels(), std::ref(task));
  }

  void LowRankPanel(std::int64_t l, const LoraView& adapter, std::int64_t panel,
                    const LinearScratch& scratch) const {
    const std::int64_t first = row_ + lanes_.first(panel);
    const std::int64_t count = lanes_.count(panel);
    const std::int64_t width = lanes_.width(panel);
    const std::int64_t rank = adapter.a.rows;
    for (std::int64_t k = 0; k < x_.cols; k += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, x_.cols - k);
      const std::byte* x_panel = scratch.panel.Row<std::byte>(0);
      if (adapter.dropout > 0) {
        const MatrixView dropped = MakeView(scratch.floats(), count, depth);
        DropInputs(adapter, x_, first, k, dropped);
        kernels_.pack_panel_of_rows(dropped, scratch.panel.data, width);
      } else if (coded_) {
        kernels_.pack_panel_of_rows(Block(x_, first, count, k, depth), scratch.panel.data, width);
      } else {
        x_panel = At(x_panels_, panel, k);
      }
      for (std::int64_t r = 0; r < rank; r += kWeightRows) {
        const std::int64_t rows = std::min(kWeightRows, rank - r);
        kernels_.pack_rows(Block(adapter.a, r, rows, k, depth), 1, scratch.rows.data,
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
    StoreTransposed(scratch.sums(), width, nullptr, false,
                    Block(outputs_[l].u, first, count, 0, rank));
    const LanePanels u = LowRankPanels(l, lanes_.range(panel));
    kernels_.pack_panel_of_columns(sums, At(u, panel, 0), width);
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
                        scratch.sums(), lanes_.total());
    } else {
      const WeightRows weight(linear.weight, o, rows, scratch.scales.Row<float>(0));
      MultiplyWeight(weight, rows, scratch);
    }
    const float* bias = linear.bias.empty() ? nullptr : linear.bias.Row<float>(0) + o;
    ForEachRange([&](const Range& panels) {
      for (std::int64_t first = 0; first < rows; first += kWeightRows) {
        AddLowRank(l, o, {first, std::min(kWeightRows, rows - first)}, panels, scratch);
      }
      const std::int64_t row = lanes_.first(panels.begin);
      const std::int64_t end = lanes_.first(panels.end - 1) + lanes_.count(panels.end - 1);
      StoreTransposed(scratch.sums() + lanes_.lane(panels.begin), lanes_.total(), bias,
                      store_ == Store::kAdd, Block(outputs_[l].y, row_ + row, end - row, o, rows));
    });
  }

  // body(panels) for the panels of the rows of each adapter.
  template <typename Body>
  void ForEachRange(const Body& body) const {
    for (Range panels = {0, 0}; panels.begin < lanes_.panels(); panels.begin = panels.end) {
      const std::int64_t range = lanes_.range(panels.begin);
      while (panels.end < lanes_.panels() && lanes_.range(panels.end) == range) ++panels.end;
      body(panels);
    }
  }

  // Rows [first, first + count) of the sums of a task.
  struct SumRows {
    std::int64_t first;
    std::int64_t count;
  };

  // sums += scale B u for some rows of B, which are counted from row o, and panels of one adapter.
  void AddLowRank(std::int64_t l, std::int64_t o, SumRows rows, const Range& panels,
                  const LinearScratch& scratch) const {
    const LoraView& adapter = LoraOf(l, lanes_.range(panels.begin));
    const LanePanels u = LowRankPanels(l, lanes_.range(panels.begin));
    for (std::int64_t r = 0; r < adapter.a.rows; r += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, adapter.a.rows - r);
      kernels_.pack_rows(Block(adapter.b, o + rows.first, rows.count, r, depth), adapter.scale,
                         scratch.rows.data, scratch.rows.stride);
      MultiplyBlock(scratch, rows, u, {r, depth}, panels, true);
    }
  }

  // sums(rows, lanes) = weight rows * x, one block of k after the other.
  void MultiplyWeight(const WeightRows& weight, std::int64_t rows,
                      const LinearScratch& scratch) const {
    const bool narrow = lanes_.panels() == 1;
    if (narrow && weight.is_chunked() && kernels_.multiply_chunks != nullptr) {
      return kernels_.multiply_chunks(weight.chunks(), {.rows = rows,
                                                        .k = x_.cols,
                                                        .width = lanes_.total(),
                                                        .panel = x_panels_.data,
                                                        .c = scratch.sums(),
                                                        .c_stride = lanes_.total()});
    }
    for (std::int64_t k = 0; k < x_.cols; k += kForwardDepth) {
      const std::int64_t depth = std::min(kForwardDepth, x_.cols - k);
      weight.Pack(kernels_, k, depth, scratch.floats(), scratch.rows.data, scratch.rows.stride);
      MultiplyBlock(scratch, {0, rows}, x_panels_, {k, depth}, {0, lanes_.panels()}, k > 0);
    }
  }

  // Values [first, first + depth) of k.
  struct Depth {
    std::int64_t first;
    std::int64_t depth;
  };

  // sums(rows, lanes) = [sums +] packed rows * values of k of some panels.
  void MultiplyBlock(const LinearScratch& scratch, SumRows rows, const LanePanels& operand, Depth k,
                     const Range& panels, bool add) const {
    for (std::int64_t p = panels.begin; p < panels.end; ++p) {
      // The panel that comes next, of these values of k or of those after them, is prefetched.
      const bool last = p + 1 == panels.end;
      const std::int64_t next = last ? panels.begin : p + 1;
      const std::int64_t next_k = last ? k.first + k.depth : k.first;
      const std::int64_t next_depth = std::min(k.depth, operand.depth - next_k);
      const std::int64_t next_bytes = next_depth * lanes_.width(next) * kernels_.bytes;
      kernels_.multiply({.rows = rows.count,
                         .k = RoundUp(k.depth, kernels_.step),
                         .width = lanes_.width(p),
                         .a = scratch.rows.data,
                         .a_stride = scratch.rows.stride,
                         .panel = At(operand, p, k.first),
                         .c = scratch.sums() + rows.first * lanes_.total() + lanes_.lane(p),
                         .c_stride = lanes_.total(),
                         .add = add,
                         .fetch = At(operand, next, next_k),
                         .fetch_lines = next_bytes / kCacheLine,
                         .fetch_stride = kCacheLine});
    }
  }

  const std::span<const LinearOutput> outputs_;
  const std::span<const LoraRows> ranges_;
  const std::int64_t rank_;
  const bool coded_;
  // The current row chunk.
  Lanes lanes_;
  std::int64_t row_ = 0;
  std::int64_t rows_ = 0;
  LanePanels x_panels_ = {};
  CodedPanels codes_ = {};
  LanePanels u_panels_ = {};
};

}  // namespace

WorkspaceSize ManyRowsWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t ranges,
                                std::int64_t features, std::int64_t rank) {
  const std::vector<IndexRange> widest = WidestRanges(std::min(rows, kRowChunk), ranges);
  const auto size_of = [&](bool coded) {
    Carver shared;
    const ForwardOperands packed(shared, kernels, coded, widest, features, rank);
    Carver worker;
    const LinearScratch scratch(worker, kernels, packed.lanes.total(), features, rank);
    return WorkspaceSize{shared.bytes(), worker.bytes()};
  };
  // Dense weights need the other operands, too, at another time.
  return kernels.int8 == nullptr ? size_of(false) : Max(size_of(false), size_of(true));
}

void ForwardManyRows(const Machine& machine, const ops::Linear& op) {
  ManyRowsRun(machine, op).Run();
}

}  // namespace qlora::cpu
