// Gradients of linears, for one row chunk after the other in three phases:
//
//   du = scale dy B                  LowRankGradients, which also packs dy
//   dA += du^T drop(x)               AdapterGradients: the lanes are columns of x and dy, and the
//   dB += scale dy^T u               sums run over the rows
//   dx = dy W + drop'(du A)          InputGradients: the lanes are columns of a weight, which is
//                                    read in the order of memory; the rows of dy are broadcast
#include <algorithm>
#include <functional>
#include <vector>

#include "backend/cpu/dropout.h"
#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/int8/coded_product.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/linear/linear_blocks.h"

namespace qlora::cpu {
namespace {

// Operands of one linear over one row chunk, packed; coded: of a weight in 8 bits.
struct PackedGradient {
  PackedGradient() = default;
  PackedGradient(Carver& carver, const Kernels& kernels, bool coded, std::int64_t rows,
                 std::int64_t out_features, std::int64_t rank) {
    const DType element = ElementType(kernels);
    if (coded) {
      codes = CodedPanels(carver, rows, out_features);
      row_factors = carver.Matrix(DType::kF32, 1, out_features);
      row_scales = carver.Matrix(DType::kU8, out_features, sizeof(int8::RowScale));
    } else {
      dy = carver.Matrix(element, rows, PackedStride(kernels, out_features));
    }
    if (rank == 0) return;
    du = carver.Matrix(element, rows, PackedStride(kernels, rank));
    du_transposed = carver.Matrix(element, rank, PackedStride(kernels, rows));
    u_transposed = carver.Matrix(element, rank, PackedStride(kernels, rows));
  }

  MatrixView dy;             // (rows, O)
  CodedPanels codes;         // of dy * row_factors
  MatrixView row_factors;    // (1, O): the scales of the rows of the weight
  MatrixView row_scales;     // (O) int8::RowScale
  MatrixView du;             // (rows, R)
  MatrixView du_transposed;  // (R, rows)
  MatrixView u_transposed;   // (R, rows)
};

class BackwardRun : LinearRun {
 public:
  BackwardRun(const Machine& machine, const ops::LinearBackward& op)
      : LinearRun(machine, op), gradients_(op.gradients), dx_(op.dx) {
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      rank_ = std::max(rank_, lora(l).a.rows);
      features_ = std::max(features_, features(l));
    }
  }

  // The workspace that Run() will carve.
  WorkspaceSize Needs() {
    // Carving from an empty Carver counts bytes instead of giving memory: the plan and the run
    // share one piece of code and cannot disagree.
    rows_ = std::min(kRowChunk, x_.rows);
    Carver shared;
    Pack(shared);
    Carver worker;
    const LinearScratch scratch(worker, kernels_, rows_, features_, rank_, kInputGradientCols);
    return {shared.bytes(), worker.bytes()};
  }

  void Run() {
    for (row_ = 0; row_ < x_.rows; row_ += kRowChunk) {
      rows_ = std::min(kRowChunk, x_.rows - row_);
      Carver carver(machine_.workspace.shared());
      Pack(carver);
      CodeGradients();
      LowRankGradients();
      if (rank_ > 0) AdapterGradients();
      if (!dx_.empty()) InputGradients();
    }
  }

 private:
  void Pack(Carver& carver) {
    for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
      packed_[l] =
          PackedGradient(carver, kernels_, IsCodedBackward(l), rows_, features(l), lora(l).a.rows);
    }
  }
  LinearScratch Scratch(int worker) const {
    Carver carver(machine_.workspace.worker(worker));
    return LinearScratch(carver, kernels_, rows_, features_, rank_, kInputGradientCols);
  }

  bool IsCodedBackward(std::int64_t l) const {
    return kernels_.int8_backward && IsCoded(kernels_, linears_[l].weight);
  }
  int8::RowScale* RowScales(std::int64_t l) const {
    return static_cast<int8::RowScale*>(packed_[l].row_scales.data);
  }

  // Codes dy, times the scales of the rows of weights in 8 bits.
  void CodeGradients() const {
    if (dx_.empty()) return;
    constexpr std::int64_t kRows = 64;
    ForEachPart([&](std::int64_t l) { return IsCodedBackward(l) ? Pieces(features(l), kRows) : 0; },
                [&](std::int64_t l, std::int64_t part, int) {
                  const WeightView& weight = linears_[l].weight;
                  std::vector<float> block_scales(int8::MostRowBlocks(weight));
                  for (std::int64_t o = part * kRows; o < std::min((part + 1) * kRows, features(l));
                       ++o) {
                    RowScales(l)[o] = ScaleOfRow(weight, o, block_scales.data());
                    packed_[l].row_factors.Row<float>(0)[o] = RowScales(l)[o].codes.scale;
                  }
                });
    ForEachPart([&](std::int64_t l) { return IsCodedBackward(l) ? packed_[l].codes.count() : 0; },
                [&](std::int64_t l, std::int64_t part, int) {
                  const CodedPanel panel = packed_[l].codes[part];
                  PackCodes(Rows(gradients_[l].dy, row_ + panel.row, panel.rows),
                            packed_[l].row_factors.Row<float>(0), CodeOrder::kPlain, panel);
                });
  }

  // Packs dy and, for linears with an adapter, computes du = scale dy B and packs it and u.
  void LowRankGradients() const {
    const std::int64_t linears = std::ssize(linears_);
    // An eighth of few rows each, so that several workers take part; kGradientRows of many. Pieces
    // begin at multiples of 8, hence of Kernels::step: a transposed operand stores `step` rows side
    // by side.
    const std::int64_t most = std::min(RoundUp(Pieces(rows_, 8), 8), kGradientRows);
    const auto task = [&](std::int64_t index, int worker) {
      const std::int64_t l = index % linears;
      const std::int64_t row = index / linears * most;
      const std::int64_t rows = std::min(most, rows_ - row);
      if (!IsCodedBackward(l)) {
        kernels_.pack_rows(Rows(gradients_[l].dy, row_ + row, rows), 1,
                           At(packed_[l].dy, kernels_, row, 0), packed_[l].dy.stride);
      }
      if (has_lora(l)) LowRankRows(l, row, rows, Scratch(worker));
    };
    machine_.context.ParallelFor(linears * Pieces(rows_, most), std::ref(task));
  }

  void LowRankRows(std::int64_t l, std::int64_t row, std::int64_t rows,
                   const LinearScratch& scratch) const {
    const ConstMatrixView& b = lora(l).b;
    const PackedGradient& packed = packed_[l];
    const std::int64_t stride = RoundUp(b.cols, kernels_.vector);
    for (std::int64_t o = 0; o < b.rows; o += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, b.rows - o);
      std::int64_t dy_stride = packed.dy.stride;
      void* dy = scratch.rows.data;
      if (IsCodedBackward(l)) {
        dy_stride = PackedStride(kernels_, kBackwardDepth);
        kernels_.pack_rows(Block(gradients_[l].dy, row_ + row, rows, o, depth), 1, dy, dy_stride);
      } else {
        dy = At(packed.dy, kernels_, row, o);
      }
      for (std::int64_t r = 0; r < b.cols; r += kChunk) {
        const std::int64_t lanes = std::min(kChunk, b.cols - r);
        PackPanels(kernels_, Block(b, o, depth, r, lanes), scratch.panel.data);
        MultiplyPanels(kernels_,
                       {.rows = rows,
                        .k = RoundUp(depth, kernels_.step),
                        .a = dy,
                        .a_stride = dy_stride,
                        .panel = scratch.panel.data,
                        .c = scratch.sums() + r,
                        .c_stride = stride,
                        .add = o > 0},
                       lanes);
      }
    }
    // Scaled in float32, before du is rounded to the element type of the operands: scaled once, du
    // serves dA and dx, and neither is scaled again.
    for (std::int64_t i = 0; i < rows * stride; ++i) scratch.sums()[i] *= lora(l).scale;
    const ConstMatrixView du = {scratch.sums(), DType::kF32, rows, b.cols, stride};
    kernels_.pack_rows(du, 1, At(packed.du, kernels_, row, 0), packed.du.stride);
    kernels_.pack_rows_transposed(du, At(packed.du_transposed, kernels_, 0, row),
                                  packed.du_transposed.stride);
    kernels_.pack_rows_transposed(Rows(gradients_[l].u, row_ + row, rows),
                                  At(packed.u_transposed, kernels_, 0, row),
                                  packed.u_transposed.stride);
  }

  // dA += du^T drop(x) and dB += scale dy^T u, kChunk columns of x or dy at a time.
  void AdapterGradients() const {
    const auto x_pieces = [&](std::int64_t l) {
      return IsAddedBefore(l) ? 0 : Pieces(x_.cols, kChunk);
    };
    ForEachPart(
        [&](std::int64_t l) { return has_lora(l) ? x_pieces(l) + Pieces(features(l), kChunk) : 0; },
        [&](std::int64_t l, std::int64_t part, int worker) {
          const LinearScratch scratch = Scratch(worker);
          if (part >= x_pieces(l)) {
            return GradientOfB(l, (part - x_pieces(l)) * kChunk, scratch);
          }
          // The linears of one A one after the other: tasks that add to one matrix would race.
          for (std::int64_t other = l; other < std::ssize(linears_); ++other) {
            if (HaveOneA(l, other)) GradientOfA(other, part * kChunk, scratch);
          }
        });
  }

  bool HaveOneA(std::int64_t k, std::int64_t l) const {
    return has_lora(l) && gradients_[k].da_acc.data == gradients_[l].da_acc.data;
  }
  // True where an earlier linear has the same A.
  bool IsAddedBefore(std::int64_t l) const {
    for (std::int64_t k = 0; k < l; ++k) {
      if (has_lora(k) && HaveOneA(k, l)) return true;
    }
    return false;
  }

  void GradientOfA(std::int64_t l, std::int64_t col, const LinearScratch& scratch) const {
    const std::int64_t lanes = std::min(kChunk, x_.cols - col);
    for (std::int64_t n = 0; n < rows_; n += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, rows_ - n);
      ConstMatrixView in = Block(x_, row_ + n, depth, col, lanes);
      if (lora(l).dropout > 0) {
        const MatrixView dropped = MakeView(scratch.floats(), depth, lanes);
        DropInputs(lora(l), x_, row_ + n, col, dropped);
        in = dropped;
      }
      SumOverRows(packed_[l].du_transposed, n, in, scratch);
    }
    StoreTile(scratch.sums(), kChunk, true,
              Block(gradients_[l].da_acc, 0, lora(l).a.rows, col, lanes));
  }

  void GradientOfB(std::int64_t l, std::int64_t col, const LinearScratch& scratch) const {
    const ConstMatrixView& dy = gradients_[l].dy;
    const std::int64_t lanes = std::min(kChunk, dy.cols - col);
    for (std::int64_t n = 0; n < rows_; n += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, rows_ - n);
      SumOverRows(packed_[l].u_transposed, n, Block(dy, row_ + n, depth, col, lanes), scratch);
    }
    // u was packed without the scale, because the forward pass keeps u = drop(x) A^T as computed.
    for (std::int64_t i = 0; i < lora(l).a.rows * kChunk; ++i) scratch.sums()[i] *= lora(l).scale;
    StoreTransposed(scratch.sums(), kChunk, nullptr, true, Rows(gradients_[l].db_acc, col, lanes));
  }

  // sums(R, kChunk) = [sums +] left(R, rows n ...) in(rows n ..., lanes).
  void SumOverRows(const MatrixView& left, std::int64_t n, const ConstMatrixView& in,
                   const LinearScratch& scratch) const {
    PackPanels(kernels_, in, scratch.panel.data);
    MultiplyPanels(kernels_,
                   {.rows = left.rows,
                    .k = RoundUp(in.rows, kernels_.step),
                    .a = At(left, kernels_, 0, n),
                    .a_stride = left.stride,
                    .panel = scratch.panel.data,
                    .c = scratch.sums(),
                    .c_stride = kChunk,
                    .add = n > 0},
                   in.cols);
  }

  // dx = sum over the linears of dy W + drop'(du A), kInputGradientCols columns at a time.
  void InputGradients() const {
    const auto task = [&](std::int64_t index, int worker) {
      const std::int64_t col = index * kInputGradientCols;
      const std::int64_t cols = std::min(kInputGradientCols, x_.cols - col);
      const LinearScratch scratch = Scratch(worker);
      const MatrixView sums = {scratch.sums(), DType::kF32, rows_, cols,
                               kInputGradientCols};  // (rows, cols)
      for (std::int64_t l = 0; l < std::ssize(linears_); ++l) {
        if (IsCodedBackward(l)) {
          MultiplyCodedColumns(l, col, scratch, sums);
        } else {
          MultiplyWeightColumns(kernels_, {linears_[l].weight, col, cols}, scratch.floats(),
                                scratch.panel.data, PartOf(packed_[l].dy, sums, l > 0));
        }
        if (has_lora(l)) AddLowRankPart(l, col, scratch, sums);
      }
      StoreTile(scratch.sums(), kInputGradientCols, store_ == Store::kAdd,
                Block(dx_, row_, rows_, col, cols));
    };
    machine_.context.ParallelFor(Pieces(x_.cols, kInputGradientCols), std::ref(task));
  }

  // sums = [sums +] dy W in 8 bits, columns [col, col + sums.cols).
  void MultiplyCodedColumns(std::int64_t l, std::int64_t col, const LinearScratch& scratch,
                            const MatrixView& sums) const {
    float* transposed = scratch.low_rank.Row<float>(0);
    const CodedPanels& codes = packed_[l].codes;
    const CodedColumns weight(linears_[l].weight, col, sums.cols, RowScales(l));
    MultiplyCoded(*kernels_.int8, weight, codes, Rows(gradients_[l].dy, row_, rows_),
                  scratch.codes(), transposed, codes.lanes());
    StoreTransposed(transposed, codes.lanes(), nullptr, l > 0, sums);
  }

  // sums += drop'(du A), columns [col, col + sums.cols).
  void AddLowRankPart(std::int64_t l, std::int64_t col, const LinearScratch& scratch,
                      const MatrixView& sums) const {
    const ConstMatrixView& a = lora(l).a;
    const bool drop = lora(l).dropout > 0;
    MatrixView to = sums;
    // The mask applies to du A alone, not to dy W, so du A needs separate sums; without dropout
    // the products are added straight to the sums of dy W.
    if (drop) to.data = scratch.low_rank.data;
    for (std::int64_t r = 0; r < a.rows; r += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, a.rows - r);
      PackPanels(kernels_, Block(a, r, depth, col, sums.cols), scratch.panel.data);
      Product product = PartOf(packed_[l].du, to, !drop || r > 0);
      product.a = At(packed_[l].du, kernels_, 0, r);
      product.k = RoundUp(depth, kernels_.step);
      product.panel = scratch.panel.data;
      MultiplyPanels(kernels_, product, sums.cols);
    }
    if (!drop) return;
    DropOutputs(lora(l), x_.cols, row_, col, to);
    StoreTile(to.Row<float>(0), to.stride, true, sums);
  }

  // sums = [sums +] `left` times an operand that the caller adds, with k, panel and width.
  Product PartOf(const MatrixView& left, const MatrixView& sums, bool add) const {
    return {.rows = rows_,
            .a = left.data,
            .a_stride = left.stride,
            .c = sums.Row<float>(0),
            .c_stride = sums.stride,
            .add = add};
  }

  const std::span<const LinearGradient> gradients_;
  const MatrixView& dx_;
  std::int64_t rank_ = 0;      // the largest of the group
  std::int64_t features_ = 0;  // the largest out_features of the group
  // The current row chunk.
  std::int64_t row_ = 0;
  std::int64_t rows_ = 0;
  PackedGradient packed_[kMostLinears];
};

}  // namespace

WorkspaceSize BackwardWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                                std::int64_t rank) {
  if (rows == 0) return {};
  const std::int64_t chunk = std::min(rows, kRowChunk);
  // A group's features and ranks are known here only as totals. Each linear of the group rounds its
  // own row up to whole panels and a gap, which adds at most PackedStride(1) per linear.
  const std::int64_t slack = kMostLinears * PackedStride(kernels, 1);
  Carver worker;
  const LinearScratch scratch(worker, kernels, chunk, features, rank, kInputGradientCols);
  WorkspaceSize size = {0, worker.bytes()};
  for (const bool coded : {false, kernels.int8_backward}) {
    Carver shared;
    const PackedGradient packed(shared, kernels, coded, chunk, features + slack,
                                rank == 0 ? 0 : rank + slack);
    size.shared = std::max(size.shared, shared.bytes());
  }
  return size;
}

void LinearBackward(const Machine& machine, const ops::LinearBackward& op) {
  CheckGroup(op.linears);
  BackwardRun backward(machine, op);
  machine.workspace.Check(backward.Needs());
  backward.Run();
}

}  // namespace qlora::cpu
