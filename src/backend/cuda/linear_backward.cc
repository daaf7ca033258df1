//   du = scale dy B;  db += scale dy^T u;  da += du^T drop(x);
//   dx = [dx +] the sum over the group of dy W + drop'(du A)
//
// The sum is one product, of the dy of all linears of the group beside each other: where they are,
// with du in the tail behind them, or in a copy.
#include <algorithm>
#include <iterator>
#include <vector>

#include "backend/cuda/linear.h"
#include "backend/cuda/operands.h"

namespace qlora::cuda {
namespace {

// The rows of a product that sums over rows: all of them, where x and dy are read in place;
// otherwise as many rows as the room for copies holds. Parts are added to a float32 sum, so only
// where there are copies does the result depend on the room.
std::int64_t RowsToSum(const Machine& machine, const ConstMatrixView& m, const MatrixView& piece) {
  if (CanMultiply(machine, m)) return std::max<std::int64_t>(1, m.rows);
  return RowsThatFit(piece, m.cols);
}

// A group of linears with the parts of their adapters that products read.
class BackwardOf {
 public:
  BackwardOf(const Machine& machine, const ops::LinearBackward& op)
      : machine_(machine), op_(op), du_(op.linears.size()), a_(op.linears.size()) {
    for (std::int64_t l = 0; l < std::ssize(op.linears); ++l) {
      outputs_ += op.linears[l].weight.rows();
      depth_ += op.linears[l].weight.rows() + (IsFolded(l) ? LoraOf(l).a.rows : 0);
      low_ranks_ += PaddedCols(LoraOf(l).a.rows);
    }
  }

  void Run() {
    const Part all = {0, op_.x.rows};
    if (!FindInPlace() && CopiesOnce()) {
      const MatrixView place = PlaceIn(machine_.pieces().gradients, op_.x.rows, depth_);
      CopyAll(machine_.stream, GradientCopies(place, all));
      all_gradients_ = place;
      all_du_columns_ = Columns(place, outputs_, depth_ - outputs_);
    }
    LowRankGradients();
    InputSideGradients();
    if (!all_gradients_.empty()) CopyAll(machine_.stream, LowRankCopies(all_du_columns_, all));
    if (!op_.dx.empty()) InputGradient();
  }

 private:
  const LoraView& LoraOf(std::int64_t l) const { return op_.linears[l].lora; }
  bool HasAdapter(std::int64_t l) const { return !LoraOf(l).a.empty(); }
  // True where dx is a product with [dy | du], which is a copy unless it is there in place.
  bool copies() const { return std::ssize(op_.linears) > 1 || IsFolded(0); }

  // Takes the dy and their tail for [dy | du] where products can read them there.
  bool FindInPlace() {
    if (op_.dx.empty() || !copies()) return false;
    std::vector<ConstMatrixView> dys;
    for (const LinearGradient& g : op_.gradients) dys.push_back(g.dy);
    ConstMatrixView beside = Beside(dys);
    const std::int64_t folded = depth_ - outputs_;
    if (beside.empty() || !CanMultiply(machine_, beside) || op_.dy_tail.cols < folded) return false;
    beside.cols = depth_;
    all_gradients_ = beside;
    if (folded > 0) all_du_columns_ = Columns(op_.dy_tail, 0, folded);
    return true;
  }

  // True where the copy is made for all rows before anything else reads dy, so that a dy of another
  // type is converted once. Products then read a dy in the copy, which must begin at a multiple of
  // 16 bytes.
  bool CopiesOnce() const {
    if (op_.dx.empty() || !copies() ||
        op_.x.rows > RowsThatFit(machine_.pieces().gradients, depth_)) {
      return false;
    }
    std::int64_t begin = 0;
    for (const LinearGradient& g : op_.gradients) {
      if (!CanMultiply(machine_, g.dy) && begin % kRowStep != 0) return false;
      begin += g.dy.cols;
    }
    return true;
  }

  // dy of all rows as a product reads it: in place, in a copy, or to be converted in parts.
  ConstMatrixView GradientOf(std::int64_t l) const {
    const ConstMatrixView& dy = op_.gradients[l].dy;
    if (all_gradients_.empty() || CanMultiply(machine_, dy)) return dy;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < l; ++i) begin += op_.gradients[i].dy.cols;
    return Columns(all_gradients_, begin, dy.cols);
  }

  // du = scale dy B of all adapters, beside each other; db += scale dy^T u.
  void LowRankGradients() {
    if (low_ranks_ == 0) return;
    const Workspace::Pieces& pieces = machine_.pieces();
    all_du_ = PlaceIn(pieces.low_rank, op_.x.rows, low_ranks_);
    // Room for u in the type of products, which du has as well.
    MatrixView u_room = pieces.wide_low_rank;
    u_room.dtype = machine_.compute();
    std::int64_t used = 0;
    std::int64_t used_adapter = 0;
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      if (!HasAdapter(l)) continue;
      const LoraView& lora = LoraOf(l);
      const LinearGradient& g = op_.gradients[l];
      du_[l] = Columns(all_du_, used, lora.a.rows);
      used += PaddedCols(lora.a.rows);
      const ConstMatrixView b = Operand(machine_, lora.b, pieces.b);
      const ConstMatrixView all_dy = GradientOf(l);
      ForParts(op_.x.rows, RowsToSum(machine_, all_dy, pieces.gradients), [&](const Part& rows) {
        const ConstMatrixView dy = Operand(machine_, RowsOf(all_dy, rows), pieces.gradients);
        machine_.Multiply({.a = dy, .b = b, .alpha = lora.scale, .c = RowsOf(du_[l], rows)});
        const ConstMatrixView u = Operand(machine_, RowsOf(g.u, rows), u_room);
        machine_.Multiply(
            {.a = dy, .b = u, .transpose_a = true, .alpha = lora.scale, .beta = 1, .c = g.db_acc});
      });
      if (IsFolded(l)) continue;
      a_[l] = Operand(machine_, lora.a, pieces.a, used_adapter);
      used_adapter += lora.a.rows * PaddedCols(lora.a.cols);
    }
  }

  // da += du^T drop(x). Without dropout x is read once for the group, and the sums of its linears
  // are rows of one matrix before they are added.
  void InputSideGradients() {
    const Workspace::Pieces& pieces = machine_.pieces();
    if (low_ranks_ == 0) return;
    const bool room = low_ranks_ * PaddedCols(op_.x.cols) <= pieces.sums.cols;
    if (drops() || std::ssize(op_.linears) == 1 || !room) {
      for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
        if (HasAdapter(l)) InputSideGradient(l);
      }
      return;
    }
    const MatrixView sums = PlaceIn(pieces.sums, low_ranks_, op_.x.cols);
    ForParts(op_.x.rows, RowsToSum(machine_, op_.x, pieces.inputs), [&](const Part& rows) {
      machine_.Multiply({.a = RowsOf(all_du_, rows),
                         .b = Operand(machine_, RowsOf(op_.x, rows), pieces.inputs),
                         .transpose_a = true,
                         .beta = rows.begin == 0 ? 0.0f : 1.0f,
                         .c = sums});
    });
    std::int64_t begin = 0;
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      if (!HasAdapter(l)) continue;
      Queue(machine_.stream,
            ops::Add{Rows(sums, begin, LoraOf(l).a.rows), op_.gradients[l].da_acc});
      begin += PaddedCols(LoraOf(l).a.rows);
    }
  }
  void InputSideGradient(std::int64_t l) {
    const LoraView& lora = LoraOf(l);
    const MatrixView& piece = machine_.pieces().inputs;
    const std::int64_t at_once =
        lora.dropout > 0 ? RowsThatFit(piece, op_.x.cols) : RowsToSum(machine_, op_.x, piece);
    ForParts(op_.x.rows, at_once, [&](const Part& rows) {
      machine_.Multiply({.a = RowsOf(du_[l], rows),
                         .b = AdapterInput(machine_, op_.x, lora, rows),
                         .transpose_a = true,
                         .beta = 1,
                         .c = op_.gradients[l].da_acc});
    });
  }

  // The adapter of a linear is part of the product, unless its input was dropped.
  bool IsFolded(std::int64_t l) const { return !LoraOf(l).a.empty() && LoraOf(l).dropout == 0; }

  // Columns of dx, so that a product goes over all output features of the group at once:
  //   dx = [dy | du] [W ; A]
  // with the dy of all linears beside each other and their W one below the other; then du and A.
  void InputGradient() {
    const std::int64_t rows_at_once = RowsAtOnce();
    ForEvenParts(op_.dx.cols, ColsThatFit(machine_.pieces().weight, depth_), [&](const Part& cols) {
      const ConstMatrixView weights =
          copies() ? GroupWeights(cols)
                   : WeightOperand(machine_, op_.linears[0].weight, {0, depth_}, cols);
      ForEvenParts(op_.x.rows, rows_at_once, [&](const Part& rows) {
        const MatrixView dx = ColumnsOf(RowsOf(op_.dx, rows), cols);
        const ConstMatrixView dy = GroupGradients(rows);
        if (drops()) return WithDroppedAdapters(dy, weights, rows, cols, dx);
        machine_.Multiply(
            {.a = dy, .b = weights, .beta = op_.store == Store::kAdd ? 1.0f : 0.0f, .c = dx});
      });
    });
  }

  std::int64_t RowsAtOnce() const {
    std::int64_t rows = std::max<std::int64_t>(1, op_.x.rows);
    const bool in_parts = copies() || !CanMultiply(machine_, op_.gradients[0].dy);
    if (all_gradients_.empty() && in_parts) {
      rows = std::min(rows, RowsThatFit(machine_.pieces().gradients, depth_));
    }
    return drops() ? std::min(rows, machine_.pieces().sums.cols / kRowStep) : rows;
  }

  bool drops() const {
    return std::any_of(op_.linears.begin(), op_.linears.end(),
                       [](const LinearView& linear) { return linear.lora.dropout > 0; });
  }

  // [W ; A] (depth, cols)
  ConstMatrixView GroupWeights(const Part& cols) const {
    const MatrixView place = PlaceIn(machine_.pieces().weight, depth_, cols.count);
    std::int64_t begin = 0;
    for (const LinearView& linear : op_.linears) {
      const std::int64_t outputs = linear.weight.rows();
      DecodeWeight(machine_.stream, {linear.weight, 0, cols.begin, Rows(place, begin, outputs)});
      begin += outputs;
    }
    std::vector<ScaledCopy> copies;
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      if (!IsFolded(l)) continue;
      const ConstMatrixView a = ColumnsOf(LoraOf(l).a, cols);
      copies.push_back({.x = a, .y = Rows(place, begin, a.rows)});
      begin += a.rows;
    }
    CopyAll(machine_.stream, copies);
    return place;
  }

  // Copies of rows of dy of all linears into the first columns of place (rows, depth).
  std::vector<ScaledCopy> GradientCopies(const MatrixView& place, const Part& rows) const {
    std::vector<ScaledCopy> copies;
    std::int64_t begin = 0;
    for (const LinearGradient& g : op_.gradients) {
      copies.push_back({.x = RowsOf(g.dy, rows), .y = Columns(place, begin, g.dy.cols)});
      begin += g.dy.cols;
    }
    return copies;
  }
  // Copies of rows of du of all adapters that are part of the product into (rows, their ranks).
  std::vector<ScaledCopy> LowRankCopies(const MatrixView& place, const Part& rows) const {
    std::vector<ScaledCopy> copies;
    std::int64_t begin = 0;
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      if (!IsFolded(l)) continue;
      copies.push_back({.x = RowsOf(du_[l], rows), .y = Columns(place, begin, du_[l].cols)});
      begin += du_[l].cols;
    }
    return copies;
  }

  // [dy | du] (rows, depth)
  ConstMatrixView GroupGradients(const Part& rows) const {
    if (!all_gradients_.empty()) return RowsOf(all_gradients_, rows);
    const MatrixView& piece = machine_.pieces().gradients;
    if (!copies()) return Operand(machine_, RowsOf(op_.gradients[0].dy, rows), piece);
    const MatrixView place = PlaceIn(piece, rows.count, depth_);
    std::vector<ScaledCopy> copies = GradientCopies(place, rows);
    std::ranges::copy(LowRankCopies(Columns(place, outputs_, depth_ - outputs_), rows),
                      std::back_inserter(copies));
    CopyAll(machine_.stream, copies);
    return place;
  }

  // dx = [dx +] dy weights + drop'(du A) of the adapters whose input was dropped, in float32 for a
  // part of the columns at a time, then rounded into dx.
  void WithDroppedAdapters(const ConstMatrixView& dy, const ConstMatrixView& weights,
                           const Part& rows, const Part& cols, const MatrixView& dx) const {
    const Workspace::Pieces& pieces = machine_.pieces();
    ForParts(cols.count, ColsThatFit(pieces.sums, rows.count), [&](const Part& part) {
      const MatrixView sum = PlaceIn(pieces.sums, rows.count, part.count);
      const MatrixView term = PlaceIn(pieces.more_sums, rows.count, part.count);
      machine_.Multiply({.a = dy, .b = ColumnsOf(weights, part), .c = sum});
      const std::int64_t first_col = cols.begin + part.begin;
      for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
        const LoraView& lora = LoraOf(l);
        if (lora.dropout == 0) continue;
        machine_.Multiply(
            {.a = RowsOf(du_[l], rows), .b = Columns(a_[l], first_col, part.count), .c = term});
        AddDropped(machine_.stream, term,
                   {.dropout = lora.dropout,
                    .key = lora.dropout_key,
                    .in_features = op_.x.cols,
                    .first_row = rows.begin,
                    .first_col = first_col},
                   sum);
      }
      const MatrixView out = ColumnsOf(dx, part);
      if (op_.store == Store::kAdd) {
        Queue(machine_.stream, ops::Add{sum, out});
      } else {
        Queue(machine_.stream, ops::Copy{sum, out});
      }
    });
  }

  const Machine& machine_;
  const ops::LinearBackward& op_;
  std::int64_t outputs_ = 0;       // features of all linears
  std::int64_t depth_ = 0;         // and the ranks of the adapters that are part of the product
  std::int64_t low_ranks_ = 0;     // of all adapters, each padded
  ConstMatrixView all_gradients_;  // (N, depth) [dy | du] of all rows, or empty
  MatrixView all_du_columns_;      // (N, depth - outputs) its last columns
  MatrixView all_du_;              // (N, low_ranks)
  std::vector<MatrixView> du_;     // its columns of each linear
  // The A of each linear, as products read it, where it is not part of the product with the base.
  std::vector<ConstMatrixView> a_;
};

}  // namespace

void LinearBackward(const Machine& machine, const ops::LinearBackward& op) {
  if (op.x.rows > 0) BackwardOf(machine, op).Run();
}

void WeightGradient(const Machine& machine, const ops::WeightGradient& op) {
  const Workspace::Pieces& pieces = machine.pieces();
  const std::int64_t at_once = std::min(RowsToSum(machine, op.dy, pieces.gradients),
                                        RowsToSum(machine, op.x, pieces.inputs));
  ForParts(op.dy.rows, at_once, [&](const Part& rows) {
    machine.Multiply({.a = Operand(machine, RowsOf(op.dy, rows), pieces.gradients),
                      .b = Operand(machine, RowsOf(op.x, rows), pieces.inputs),
                      .transpose_a = true,
                      .beta = 1,
                      .c = op.dw_acc});
  });
}

}  // namespace qlora::cuda
