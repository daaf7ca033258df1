// Gradients with respect to the inputs: the columns of a weight are the lanes, so that it is read
// as it lies, and the rows of dy are broadcast. Gradients of the adapters: the lanes are the
// columns of x and dy, and the sums run over the rows.
#include <algorithm>
#include <functional>

#include "backend/cpu/linear.h"
#include "backend/cpu/linear_plan.h"
#include "backend/cpu/store_tile.h"

namespace qlora::cpu {
namespace {

// Operands of one linear over one row chunk, packed.
struct PackedGradient {
  PackedGradient() = default;
  PackedGradient(Carver& carver, const Kernels& kernels, std::int64_t rows,
                 std::int64_t out_features, std::int64_t rank) {
    const DType element = ElementType(kernels);
    dy = carver.Matrix(element, rows, PackedStride(kernels, out_features));
    if (rank == 0) return;
    du = carver.Matrix(element, rows, PackedStride(kernels, rank));
    du_transposed = carver.Matrix(element, rank, PackedStride(kernels, rows));
    u_transposed = carver.Matrix(element, rank, PackedStride(kernels, rows));
  }

  MatrixView dy;             // (rows, O)
  MatrixView du;             // (rows, R)
  MatrixView du_transposed;  // (R, rows)
  MatrixView u_transposed;   // (R, rows)
};

class LinearBackwardRun {
 public:
  LinearBackwardRun(const Machine& machine, std::span<const LinearView> linears,
                    const ConstMatrixView& x, std::span<const LinearGradient> gradients,
                    const MatrixView& dx, Store store)
      : machine_(machine),
        kernels_(machine.kernels),
        linears_(linears),
        x_(x),
        gradients_(gradients),
        dx_(dx),
        store_(store) {
    for (const LinearView& linear : linears) {
      rank_ = std::max(rank_, linear.lora.a.rows);
      features_ = std::max(features_, linear.weight.rows());
    }
  }

  // What Run() will carve.
  WorkspaceSize Needs() {
    rows_ = std::min(kRowChunk, x_.rows);
    Carver shared;
    Pack(shared);
    Carver worker;
    const LinearScratch scratch(worker, kernels_, rows_, features_, rank_);
    return {shared.bytes(), worker.bytes()};
  }

  void Run() {
    for (row_ = 0; row_ < x_.rows; row_ += kRowChunk) {
      rows_ = std::min(kRowChunk, x_.rows - row_);
      Carver carver(machine_.workspace.shared());
      Pack(carver);
      LowRankGradients();
      if (rank_ > 0) AdapterGradients();
      if (!dx_.empty()) InputGradients();
    }
  }

 private:
  void Pack(Carver& carver) {
    for (std::size_t l = 0; l < linears_.size(); ++l) {
      packed_[l] = PackedGradient(carver, kernels_, rows_, linears_[l].weight.rows(),
                                  linears_[l].lora.a.rows);
    }
  }
  LinearScratch Scratch(int worker) const {
    Carver carver(machine_.workspace.worker(worker));
    return LinearScratch(carver, kernels_, rows_, features_, rank_);
  }
  void Parallel(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task) const {
    machine_.context.ParallelFor(tasks, task);
  }

  // Packs dy and, for linears with an adapter, computes du = scale dy B and packs it and u.
  void LowRankGradients() const {
    const auto linears = static_cast<std::int64_t>(linears_.size());
    const std::int64_t most = std::min(RoundUp(Pieces(rows_, 8), 8), kGradientRows);
    const auto task = [&](std::int64_t index, int worker) {
      const auto l = static_cast<std::size_t>(index % linears);
      const std::int64_t row = index / linears * most;
      const std::int64_t rows = std::min(most, rows_ - row);
      kernels_.pack_rows(Rows(gradients_[l].dy, row_ + row, rows), 1,
                         At(packed_[l].dy, kernels_, row, 0), packed_[l].dy.stride);
      if (!linears_[l].lora.a.empty()) LowRankRows(l, row, rows, Scratch(worker));
    };
    Parallel(linears * Pieces(rows_, most), std::ref(task));
  }

  void LowRankRows(std::size_t l, std::int64_t row, std::int64_t rows,
                   const LinearScratch& scratch) const {
    const LoraView& lora = linears_[l].lora;
    const PackedGradient& packed = packed_[l];
    const std::int64_t rank = lora.a.rows;
    const std::int64_t stride = RoundUp(rank, kernels_.vector);
    for (std::int64_t o = 0; o < lora.b.rows; o += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, lora.b.rows - o);
      for (std::int64_t r = 0; r < rank; r += kChunk) {
        const std::int64_t lanes = std::min(kChunk, rank - r);
        PackPanels(kernels_, Block(lora.b, o, depth, r, lanes), scratch.packed_panel());
        MultiplyPanels(kernels_,
                       {.rows = rows,
                        .k = RoundUp(depth, kernels_.step),
                        .a = At(packed.dy, kernels_, row, o),
                        .a_stride = packed.dy.stride,
                        .panel = scratch.packed_panel(),
                        .c = scratch.sums() + r,
                        .c_stride = stride,
                        .add = o > 0},
                       lanes);
      }
    }
    for (std::int64_t i = 0; i < rows * stride; ++i) scratch.sums()[i] *= lora.scale;
    const ConstMatrixView du = {scratch.sums(), DType::kF32, rows, rank, stride};
    kernels_.pack_rows(du, 1, At(packed.du, kernels_, row, 0), packed.du.stride);
    kernels_.pack_rows_transposed(du, At(packed.du_transposed, kernels_, 0, row),
                                  packed.du_transposed.stride);
    kernels_.pack_rows_transposed(Rows(gradients_[l].u, row_ + row, rows),
                                  At(packed.u_transposed, kernels_, 0, row),
                                  packed.u_transposed.stride);
  }

  // dA += du^T drop(x) and dB += scale dy^T u, kChunk columns of x or dy at a time.
  void AdapterGradients() const {
    const std::int64_t x_pieces = Pieces(x_.cols, kChunk);
    std::int64_t tasks = 0;
    for (const LinearView& linear : linears_) tasks += TasksOf(linear, x_pieces);
    const auto task = [&](std::int64_t index, int worker) {
      std::size_t l = 0;
      for (; index >= TasksOf(linears_[l], x_pieces); ++l) index -= TasksOf(linears_[l], x_pieces);
      const LinearScratch scratch = Scratch(worker);
      if (index < x_pieces) {
        GradientOfA(l, index * kChunk, scratch);
      } else {
        GradientOfB(l, (index - x_pieces) * kChunk, scratch);
      }
    };
    Parallel(tasks, std::ref(task));
  }
  static std::int64_t TasksOf(const LinearView& linear, std::int64_t x_pieces) {
    return linear.lora.a.empty() ? 0 : x_pieces + Pieces(linear.weight.rows(), kChunk);
  }

  void GradientOfA(std::size_t l, std::int64_t col, const LinearScratch& scratch) const {
    const LoraView& lora = linears_[l].lora;
    const std::int64_t lanes = std::min(kChunk, x_.cols - col);
    for (std::int64_t n = 0; n < rows_; n += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, rows_ - n);
      ConstMatrixView in = Block(x_, row_ + n, depth, col, lanes);
      if (lora.dropout > 0) {
        const MatrixView dropped = MakeView(scratch.values.Row<float>(0), depth, lanes);
        DropInputs(lora, x_, row_ + n, col, dropped);
        in = dropped;
      }
      SumOverRows(packed_[l].du_transposed, n, in, scratch);
    }
    StoreTile(scratch.sums(), kChunk, true,
              Block(gradients_[l].da_acc, 0, lora.a.rows, col, lanes));
  }

  void GradientOfB(std::size_t l, std::int64_t col, const LinearScratch& scratch) const {
    const LoraView& lora = linears_[l].lora;
    const ConstMatrixView& dy = gradients_[l].dy;
    const std::int64_t lanes = std::min(kChunk, dy.cols - col);
    for (std::int64_t n = 0; n < rows_; n += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, rows_ - n);
      SumOverRows(packed_[l].u_transposed, n, Block(dy, row_ + n, depth, col, lanes), scratch);
    }
    for (std::int64_t i = 0; i < lora.a.rows * kChunk; ++i) scratch.sums()[i] *= lora.scale;
    StoreTransposed(scratch.sums(), kChunk, nullptr, true, Rows(gradients_[l].db_acc, col, lanes));
  }

  // sums(R, kChunk) = [sums +] left(R, rows n ...) in(rows n ..., lanes).
  void SumOverRows(const MatrixView& left, std::int64_t n, const ConstMatrixView& in,
                   const LinearScratch& scratch) const {
    PackPanels(kernels_, in, scratch.packed_panel());
    MultiplyPanels(kernels_,
                   {.rows = left.rows,
                    .k = RoundUp(in.rows, kernels_.step),
                    .a = At(left, kernels_, 0, n),
                    .a_stride = left.stride,
                    .panel = scratch.packed_panel(),
                    .c = scratch.sums(),
                    .c_stride = kChunk,
                    .add = n > 0},
                   in.cols);
  }

  // dx = sum over the linears of dy W + drop'(du A), kChunk columns at a time; for few rows two
  // such pieces together, because a line of the cache holds the 4-bit values of both.
  void InputGradients() const {
    const std::int64_t width = rows_ <= kPairedRows ? 2 * kChunk : kChunk;
    const auto task = [&](std::int64_t index, int worker) {
      const std::int64_t col = index * width;
      const std::int64_t cols = std::min(width, x_.cols - col);
      const LinearScratch scratch = Scratch(worker);
      const MatrixView sums = {scratch.sums(), DType::kF32, rows_, cols, width};  // (rows, cols)
      bool add = false;
      for (std::size_t l = 0; l < linears_.size(); ++l) {
        MultiplyWeightPanels(kernels_, linears_[l].weight, col, cols, scratch.values.Row<float>(0),
                             scratch.packed_panel(), PartOf(packed_[l].dy, sums, add));
        add = true;
        if (!linears_[l].lora.a.empty()) AddLowRankPart(l, col, scratch, sums);
      }
      StoreTile(scratch.sums(), width, store_ == Store::kAdd, Block(dx_, row_, rows_, col, cols));
    };
    Parallel(Pieces(x_.cols, width), std::ref(task));
  }

  // sums += drop'(du A), columns [col, col + sums.cols).
  void AddLowRankPart(std::size_t l, std::int64_t col, const LinearScratch& scratch,
                      const MatrixView& sums) const {
    const LoraView& lora = linears_[l].lora;
    const bool drop = lora.dropout > 0;
    MatrixView to = sums;
    if (drop) to.data = scratch.low_rank.data;
    for (std::int64_t r = 0; r < lora.a.rows; r += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, lora.a.rows - r);
      PackPanels(kernels_, Block(lora.a, r, depth, col, sums.cols), scratch.packed_panel());
      Product product = PartOf(packed_[l].du, to, !drop || r > 0);
      product.a = At(packed_[l].du, kernels_, 0, r);
      product.k = RoundUp(depth, kernels_.step);
      product.panel = scratch.packed_panel();
      MultiplyPanels(kernels_, product, sums.cols);
    }
    if (!drop) return;
    DropOutputs(lora, x_.cols, row_, col, to);
    for (std::int64_t n = 0; n < rows_; ++n) {
      for (std::int64_t i = 0; i < sums.cols; ++i) sums.Row<float>(n)[i] += to.Row<float>(n)[i];
    }
  }

  // sums = [sums +] `left` times what is still to be named, with k, panel and width.
  Product PartOf(const MatrixView& left, const MatrixView& sums, bool add) const {
    return {.rows = rows_,
            .a = left.data,
            .a_stride = left.stride,
            .c = sums.Row<float>(0),
            .c_stride = sums.stride,
            .add = add};
  }

  const Machine& machine_;
  const Kernels& kernels_;
  std::span<const LinearView> linears_;
  const ConstMatrixView& x_;
  std::span<const LinearGradient> gradients_;
  const MatrixView& dx_;
  const Store store_;
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
  const std::int64_t slack = kMostLinears * PackedStride(kernels, 1);
  Carver shared;
  const PackedGradient packed(shared, kernels, chunk, features + slack,
                              rank == 0 ? 0 : rank + slack);
  Carver worker;
  const LinearScratch scratch(worker, kernels, chunk, features, rank);
  return {shared.bytes(), worker.bytes()};
}

void LinearBackward(const Machine& machine, std::span<const LinearView> linears, ConstMatrixView x,
                    std::span<const LinearGradient> gradients, MatrixView dx, Store store) {
  CheckGroup(linears);
  LinearBackwardRun backward(machine, linears, x, gradients, dx, store);
  machine.workspace.Check(backward.Needs());
  backward.Run();
}

}  // namespace qlora::cpu
