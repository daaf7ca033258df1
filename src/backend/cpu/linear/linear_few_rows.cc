// Linears over few rows, as when text is generated: every row of a weight is read in the order of
// memory, and meets all rows of x as dot products. The update of an adapter, scale u B^T, is a tile
// of Kernels::multiply over its rows.
#include <algorithm>
#include <functional>
#include <vector>

#include "backend/cpu/gemm/dot_weight.h"
#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/int8/coded_product.h"
#include "backend/cpu/linear/linear_blocks.h"
#include "backend/cpu/row_ops.h"
#include "backend/packed_lora.h"

namespace qlora::cpu {
namespace {

// Weights per task: about two microseconds at the speed of memory, so that threads share evenly.
constexpr std::int64_t kTaskWeights = 131072;
constexpr std::int64_t kMostTaskRows = 20 * kDotWeightRows;
static_assert(kMostTaskRows % kPrepackedRows == 0 && kMostTaskRows % kDotWeightRows == 0);
// Where rows of B are lanes, tasks begin with whole vectors of them.
constexpr std::int64_t kVectorRows = 16;
constexpr std::int64_t kAdaptedRows = 4 * kDotWeightRows;
static_assert(kMostTaskRows % kVectorRows == 0 && kPrepackedRows % kVectorRows == 0);
static_assert(kAdaptedRows % kVectorRows == 0 && kMostTaskRows % kAdaptedRows == 0);
constexpr std::int64_t kRankRows = 4;  // rows of A per task
// Rows of x that meet all rows of A, where there are more of them: half a megabyte of the
// second-level cache for 2048 columns.
constexpr std::int64_t kLowRankRows = 64;

// Operands that all workers read.
struct FewRowsOperands {
  FewRowsOperands(Carver& carver, const Kernels& kernels, std::int64_t count,
                  std::int64_t in_features, std::int64_t rank, bool row_by_row) {
    const DType element = ElementType(kernels);
    const bool coded = kernels.int8 != nullptr;
    for (int f = 0; f < kDotFormCount; ++f) {
      const DotForm form = kDotForms[f];
      const std::int64_t most = MostDotRows(kernels, form, row_by_row);
      // All rows of x meet rows of A, even if they are too many for rows of a weight. The other
      // forms are those of quantized weights.
      const std::int64_t others = coded ? 0 : std::min(count, most);
      const std::int64_t rows = form == DotForm::kRows ? count : others;
      x[f] = carver.Matrix(ElementType(DotTable(kernels, form)), rows,
                           PackedElements(form, in_features));
    }
    u = carver.Matrix(element, count, rank + kMostLinears * (kernels.step - 1));
    if (coded) codes = CodedPanels(carver, count, in_features, count <= kernels.int8->most_dots);
    if (rank == 0 || !row_by_row) return;
    x_of_blocks = carver.Matrix(ElementType(DotsOf(kernels)), count,
                                PackedElements(DotForm::kRows, in_features));
  }

  MatrixView x[kDotFormCount];
  MatrixView u;            // the rows operand scale u of one range and linear after the other
  CodedPanels codes;       // of x, for weights in 8 bits
  MatrixView x_of_blocks;  // rows for A, one block after the other
};

// Scratch of one worker.
struct FewRowsScratch {
  FewRowsScratch(Carver& carver, const Kernels& kernels, std::int64_t count,
                 std::int64_t in_features, std::int64_t rank)
      : weight(carver, kernels, std::max(in_features, rank),
               kernels.prepacked != nullptr && count >= kernels.prepacked->fewest_repacked_rows) {
    sums = carver.Matrix(DType::kF32, count, kMostTaskRows);
    panel = carver.Matrix(ElementType(kernels), RoundUp(rank, kernels.step), kernels.panel);
    if (kernels.int8 == nullptr) return;
    scales = carver.Matrix(DType::kF32, 1, WeightRows::ScaleCount(in_features, kWeightRows));
    codes = carver.Matrix(DType::kU8, kWeightRows, kInt8Stride);
    tile = carver.Matrix(DType::kF32, kWeightRows, RoundUp(count, kInt8Vector));
  }

  DotScratch weight;
  MatrixView sums;   // (rows of x, rows of a weight)
  MatrixView panel;  // (R, lanes) of B
  // Of a weight in 8 bits: factors and codes of kWeightRows rows, and their sums (kWeightRows, rows
  // of x).
  MatrixView scales;
  MatrixView codes;
  MatrixView tile;
};

class FewRowsRun : LinearRun {
 public:
  FewRowsRun(const Machine& machine, const ops::Linear& op)
      : LinearRun(machine, op),
        outputs_(op.outputs),
        rank_(LargestRank(op)),
        row_by_row_(op.order != SumOrder::kFastest) {
    AddLowRankParts(op);
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      is_coded_[l] = IsCoded(kernels_, linears_[l].weight);
      const std::int64_t step = FormOf(l) == DotForm::kPrepacked ? kPrepackedRows
                                : low_rank_.empty()              ? kDotWeightRows
                                                                 : kAdaptedRows;
      task_rows_[l] = std::clamp(RoundUp(kTaskWeights / x_.cols, step), step, kMostTaskRows);
    }
  }

  void Run() {
    Carver carver(machine_.workspace.shared());
    const FewRowsOperands packed(carver, kernels_, x_.rows, x_.cols, rank_, row_by_row_);
    DotOperand x = Operand(x_.rows);
    for (int f = 0; f < kDotFormCount; ++f) {
      x.packed[f] = packed.x[f].Row<std::byte>(0);
      if (Needs(kDotForms[f])) x.Pack(machine_.context, kDotForms[f], x_);
    }
    PackCoded(packed.codes);
    std::byte* u = packed.u.Row<std::byte>(0);
    for (LowRankPart& part : low_rank_) {
      const MatrixView& of = part.u;
      part.packed = {u, ElementType(kernels_), of.rows, of.cols, RoundUp(of.cols, kernels_.step)};
      u += part.packed.rows * part.packed.stride * kernels_.bytes;
    }
    if (rank_ > 0) LowRank(OperandsOfBlocks(x, packed));
    Outputs(x);
  }

 private:
  // The adapter of a linear for a range of rows.
  struct LowRankPart {
    std::int64_t linear;
    Range rows;
    Range blocks;  // of blocks_
    LoraView lora;
    MatrixView u;       // (rows, R)
    MatrixView packed;  // scale u as a rows operand

    const ConstMatrixView& a() const { return lora.packed_a.empty() ? lora.a : lora.packed_a; }
  };

  void AddLowRankParts(const ops::Linear& op) {
    for (const LoraRows& range : op.ranges) {
      AddRange({range.begin, range.begin + range.rows},
               [&](std::int64_t l) { return range.loras[l]; });
    }
    if (op.ranges.empty()) AddRange({0, x_.rows}, [&](std::int64_t l) { return lora(l); });
  }

  // lora_of(l): the adapter of a linear.
  template <typename LoraOf>
  void AddRange(const Range& rows, const LoraOf& lora_of) {
    const std::int64_t count = rows.end - rows.begin;
    // Without an order of sums, x is packed for a single block.
    const std::int64_t most = row_by_row_ ? kLowRankRows : x_.rows;
    const Range blocks = {std::ssize(blocks_), std::ssize(blocks_) + Pieces(count, most)};
    bool is_adapted = false;
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      const LoraView lora = lora_of(l);
      if (lora.a.empty() || count == 0) continue;
      const MatrixView u = Block(outputs_[l].u, rows.begin, count, 0, lora.a.rows);
      low_rank_.push_back({l, rows, blocks, lora, u, {}});
      is_adapted = true;
    }
    for (std::int64_t row = rows.begin; is_adapted && row < rows.end; row += most) {
      blocks_.push_back({row, std::min(row + most, rows.end)});
    }
  }

  void PackCoded(const CodedPanels& codes) {
    codes_ = codes;
    if (std::ranges::none_of(is_coded_, std::identity())) return;
    const auto task = [&](std::int64_t panel, int) {
      const CodedPanel to = codes[panel];
      PackCodes(Rows(x_, to.row, to.rows), nullptr, CodeOrder::kPaired, to);
    };
    machine_.context.ParallelFor(codes.count(), std::ref(task));
  }

  DotOperand Operand(std::int64_t rows) const {
    return {.kernels = kernels_, .count = rows, .cols = x_.cols, .row_by_row = row_by_row_};
  }

  // One block has all rows of x.
  bool IsOneBlock() const {
    return blocks_.size() == 1 && blocks_[0].end - blocks_[0].begin == x_.rows;
  }

  // The rows of x of each block, packed for dot products with A.
  std::vector<DotOperand> OperandsOfBlocks(const DotOperand& x,
                                           const FewRowsOperands& packed) const {
    if (IsOneBlock()) return {x};
    constexpr DotForm kForm = DotForm::kRows;
    std::vector<DotOperand> operands;
    for (const Range& rows : blocks_) {
      operands.push_back(Operand(rows.end - rows.begin));
      operands.back().packed[static_cast<int>(kForm)] =
          static_cast<std::byte*>(At(packed.x_of_blocks, DotsOf(kernels_), rows.begin, 0));
    }
    ParallelParts(
        machine_, std::ssize(operands), [&](std::int64_t b) { return operands[b].batches(kForm); },
        [&](std::int64_t b, std::int64_t batch, int) {
          const Range& rows = blocks_[b];
          operands[b].PackBatch(kForm, Rows(x_, rows.begin, rows.end - rows.begin), batch);
        });
    return operands;
  }

  FewRowsScratch Scratch(int worker) const {
    Carver carver(machine_.workspace.worker(worker));
    return FewRowsScratch(carver, kernels_, x_.rows, x_.cols, rank_);
  }

  DotForm FormOf(std::int64_t l) const { return Operand(x_.rows).FormOf(linears_[l].weight); }
  bool Needs(DotForm form) const {
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      if (!is_coded_[l] && FormOf(l) == form) return true;
    }
    return form == DotForm::kRows && IsOneBlock();
  }

  // u = x A^T, written to the outputs and packed. A task is a few rows of A, or with many rows of x
  // all of them.
  void LowRank(const std::vector<DotOperand>& x) const {
    const auto rows_of_a = [](const LowRankPart& part) {
      return part.blocks.end - part.blocks.begin == 1 ? kRankRows : part.u.cols;
    };
    const auto pieces = [&](const LowRankPart& part) {
      return Pieces(part.u.cols, rows_of_a(part));
    };
    ParallelParts(
        machine_, std::ssize(low_rank_),
        [&](std::int64_t p) {
          return (low_rank_[p].blocks.end - low_rank_[p].blocks.begin) * pieces(low_rank_[p]);
        },
        [&](std::int64_t p, std::int64_t index, int worker) {
          const LowRankPart& part = low_rank_[p];
          const std::int64_t block = part.blocks.begin + index / pieces(part);
          const std::int64_t r = index % pieces(part) * rows_of_a(part);
          DotWeightRows(x[block], part.a(), r, std::min(rows_of_a(part), part.u.cols - r),
                        Scratch(worker).weight,
                        part.u.Row<float>(blocks_[block].begin - part.rows.begin) + r,
                        part.u.stride);
        });
    for (const LowRankPart& part : low_rank_) {
      kernels_.pack_rows(part.u, part.lora.scale, part.packed.data, part.packed.stride);
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
    for (const LowRankPart& part : low_rank_) {
      if (part.linear == l) FetchB(part.lora, o, rows);
    }
    if (is_coded_[l]) {
      CodedOutputs(linear.weight, o, rows, scratch);
    } else {
      DotWeightRows(x, linear.weight, o, rows, scratch.weight, scratch.sums.Row<float>(0),
                    scratch.sums.stride);
    }
    for (const LowRankPart& part : low_rank_) {
      if (part.linear == l) Add(part, o, rows, scratch);
    }
    for (std::int64_t m = 0; m < x.count && !linear.bias.empty(); ++m) {
      float* sums = scratch.sums.Row<float>(m);
      for (std::int64_t r = 0; r < rows; ++r) sums[r] += linear.bias.Row<float>(0)[o + r];
    }
    StoreTile(scratch.sums.Row<float>(0), scratch.sums.stride, store_ == Store::kAdd,
              Block(outputs_[l].y, 0, x.count, o, rows));
  }

  // The sums of a weight in 8 bits, which come with rows of x as columns.
  void CodedOutputs(const WeightView& weight, std::int64_t o, std::int64_t rows,
                    const FewRowsScratch& scratch) const {
    for (std::int64_t first = 0; first < rows; first += kWeightRows) {
      const std::int64_t n = std::min(kWeightRows, rows - first);
      const CodedRows part(weight, o + first, n, scratch.scales.Row<float>(0));
      MultiplyCodedRows(*kernels_.int8, part, codes_, x_, scratch.codes.Row<std::uint8_t>(0),
                        scratch.tile.Row<float>(0), scratch.tile.stride);
      StoreTransposed(scratch.tile.Row<float>(0), scratch.tile.stride, nullptr, false,
                      Block(scratch.sums, 0, x_.rows, first, n));
    }
  }

  // Fetches packed rows of B, which are short pieces of memory, while the weight is multiplied.
  static void FetchB(const LoraView& lora, std::int64_t row, std::int64_t rows) {
    if (lora.packed_b.empty()) return;
    std::int64_t lanes = 0;
    for (std::int64_t o = row; o < row + rows; o += lanes) {
      lanes = std::min(kPackedRows - o % kPackedRows, row + rows - o);
      const ConstMatrixView columns = LanesOfB(lora, o, lanes);
      const auto bytes = static_cast<std::int64_t>(BytesOf(columns.dtype, lanes));
      for (std::int64_t r = 0; r < columns.rows; ++r) {
        const auto* begin = static_cast<const std::byte*>(Rows(columns, r, 1).data);
        for (std::int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(begin + i, 0, 2);
      }
    }
  }

  // Rows of B, of one packed panel: (R, lanes).
  static ConstMatrixView LanesOfB(const LoraView& lora, std::int64_t row, std::int64_t lanes) {
    const std::int64_t rank = lora.a.rows;
    return Block(lora.packed_b, row / kPackedRows * rank, rank, row % kPackedRows, lanes);
  }

  // Rows of B, of one packed panel, as the lanes of a panel of Kernels::multiply.
  void PackPanelOfB(const LoraView& lora, std::int64_t row, std::int64_t lanes, void* panel,
                    std::int64_t width) const {
    if (lora.packed_b.empty()) {
      return kernels_.pack_panel_of_rows(Rows(lora.b, row, lanes), panel, width);
    }
    kernels_.pack_panel_of_columns(LanesOfB(lora, row, lanes), panel, width);
  }

  // sums += scale u B^T, with rows of B as lanes; those that fill up the last vector are added to
  // sums that nobody reads.
  void Add(const LowRankPart& part, std::int64_t o, std::int64_t rows,
           const FewRowsScratch& scratch) const {
    std::int64_t lanes = 0;
    for (std::int64_t r = 0; r < rows; r += lanes) {
      const std::int64_t left = kPackedRows - (o + r) % kPackedRows;
      lanes = std::min({kernels_.panel, rows - r, left});
      const std::int64_t width = RoundUp(lanes, kernels_.vector);
      PackPanelOfB(part.lora, o + r, lanes, scratch.panel.data, width);
      kernels_.multiply({.rows = part.packed.rows,
                         .k = part.packed.stride,
                         .width = width,
                         .a = part.packed.data,
                         .a_stride = part.packed.stride,
                         .panel = scratch.panel.data,
                         .c = scratch.sums.Row<float>(part.rows.begin) + r,
                         .c_stride = scratch.sums.stride,
                         .add = true});
    }
  }

  const std::span<const LinearOutput> outputs_;
  const std::int64_t rank_;
  const bool row_by_row_;
  std::int64_t task_rows_[kMostLinears];  // rows of each weight per task
  bool is_coded_[kMostLinears] = {};
  CodedPanels codes_;
  std::vector<Range> blocks_;  // of adapted rows, each with one adapter
  std::vector<LowRankPart> low_rank_;
};

}  // namespace

WorkspaceSize FewRowsWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                               std::int64_t rank, bool row_by_row) {
  std::int64_t most = 0;
  for (const DotForm form : kDotForms)
    most = std::max(most, MostDotRows(kernels, form, row_by_row));
  const std::int64_t count = std::min(rows, most);
  Carver shared;
  const FewRowsOperands packed(shared, kernels, count, features, rank, row_by_row);
  Carver worker;
  const FewRowsScratch scratch(worker, kernels, count, features, rank);
  return {shared.bytes(), worker.bytes()};
}

void ForwardFewRows(const Machine& machine, const ops::Linear& op) {
  FewRowsRun(machine, op).Run();
}

}  // namespace qlora::cpu
