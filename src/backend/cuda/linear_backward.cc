//   du = scale dy B;  db += scale dy^T u;  da += du^T drop(x);
//   dx = [dx +] the sum over the group of dy W + drop'(du A)
//
// The sum is one product, of the dy of all linears of the group beside each other.
#include "backend/cuda/linear.h"
#include "backend/cuda/operands.h"

namespace qlora::cuda {
namespace {

// The rows of a product that sums over rows: all of them, where x and dy are read in place, or else
// as many as there is room for copies of. Parts are added to a float32 sum, so only where there are
// copies does the result depend on the room.
std::int64_t RowsToSum(const Machine& machine, const ConstMatrixView& x, float dropout,
                       const ConstMatrixView& dy) {
  const Workspace::Pieces& pieces = machine.pieces();
  std::int64_t rows = x.rows;
  if (!CanMultiply(machine, dy)) rows = std::min(rows, RowsThatFit(pieces.gradients, dy.cols));
  if (dropout > 0 || !CanMultiply(machine, x)) {
    rows = std::min(rows, RowsThatFit(pieces.inputs, x.cols));
  }
  return rows;
}

// A group of linears with what products read of their adapters.
class BackwardOf {
 public:
  BackwardOf(const Machine& machine, const ops::LinearBackward& op)
      : machine_(machine), op_(op), du_(op.linears.size()), a_(op.linears.size()) {}

  void Run() {
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      if (!op_.linears[l].lora.a.empty()) AdapterGradient(l);
    }
    if (!op_.dx.empty()) InputGradient();
  }

 private:
  const LoraView& LoraOf(std::int64_t l) const { return op_.linears[l].lora; }

  ConstMatrixView Gradient(std::int64_t l, const Part& rows) const {
    return Operand(machine_, RowsOf(op_.gradients[l].dy, rows), machine_.pieces().gradients);
  }

  // du of all rows stays for InputGradient, behind those of the linears before.
  void AdapterGradient(std::int64_t l) {
    const LoraView& lora = LoraOf(l);
    const LinearGradient& g = op_.gradients[l];
    const Workspace::Pieces& pieces = machine_.pieces();
    const std::int64_t N = op_.x.rows;
    const std::int64_t R = lora.a.rows;
    const std::int64_t padded = N * PaddedCols(R);
    const ConstMatrixView b = Operand(machine_, lora.b, pieces.b);
    const MatrixView wide_du = PlaceIn(pieces.wide_low_rank, N, R, used_low_rank_);
    const MatrixView u_piece = PlaceIn(pieces.low_rank, N, R, used_low_rank_);

    const std::int64_t at_once = RowsToSum(machine_, op_.x, lora.dropout, g.dy);
    ForParts(N, at_once, [&](const Part& rows) {
      const ConstMatrixView dy = Gradient(l, rows);
      machine_.blas.Run(machine_.stream,
                        {.a = dy, .b = b, .alpha = lora.scale, .c = RowsOf(wide_du, rows)});
      const ConstMatrixView u = CopyOrSelf(RowsOf(g.u, rows), RowsOf(u_piece, rows));
      machine_.blas.Run(
          machine_.stream,
          {.a = dy, .b = u, .transpose_a = true, .alpha = lora.scale, .beta = 1, .c = g.db_acc});
    });
    // u is not needed any more; du takes its place.
    du_[l] = CopyOrSelf(wide_du, u_piece);
    ForParts(N, at_once, [&](const Part& rows) {
      machine_.blas.Run(machine_.stream, {.a = RowsOf(du_[l], rows),
                                          .b = AdapterInput(machine_, op_.x, lora, rows),
                                          .transpose_a = true,
                                          .beta = 1,
                                          .c = g.da_acc});
    });
    used_low_rank_ += padded;
    if (IsFolded(l)) return;
    a_[l] = Operand(machine_, lora.a, pieces.a, used_adapter_);
    used_adapter_ += R * PaddedCols(lora.a.cols);
  }

  ConstMatrixView CopyOrSelf(const ConstMatrixView& m, const MatrixView& room) const {
    if (CanMultiply(machine_, m)) return m;
    DropRows(machine_.stream, m, {}, room);
    return room;
  }

  // The adapter of a linear is part of the product, unless its input was dropped.
  bool IsFolded(std::int64_t l) const { return !LoraOf(l).a.empty() && LoraOf(l).dropout == 0; }

  // Columns of dx, so that a product goes over all output features of the group at once:
  //   dx = [dy | du] [W ; A]
  // with the dy of all linears beside each other and their W one below the other; then du and A.
  void InputGradient() {
    std::int64_t depth = 0;
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      depth += op_.linears[l].weight.rows() + (IsFolded(l) ? LoraOf(l).a.rows : 0);
    }
    const bool copies = std::ssize(op_.linears) > 1 || IsFolded(0);
    const std::int64_t rows_at_once = RowsAtOnce(depth, copies);
    ForEvenParts(op_.dx.cols, ColsThatFit(machine_.pieces().weight, depth), [&](const Part& cols) {
      const ConstMatrixView weights =
          copies ? GroupWeights(depth, cols)
                 : WeightOperand(machine_, op_.linears[0].weight, {0, depth}, cols);
      ForEvenParts(op_.x.rows, rows_at_once, [&](const Part& rows) {
        const MatrixView dx = ColumnsOf(RowsOf(op_.dx, rows), cols);
        const ConstMatrixView dy = copies ? GroupGradients(depth, rows) : Gradient(0, rows);
        if (drops()) return WithDroppedAdapters(dy, weights, rows, cols, dx);
        machine_.blas.Run(
            machine_.stream,
            {.a = dy, .b = weights, .beta = op_.store == Store::kAdd ? 1.0f : 0.0f, .c = dx});
      });
    });
  }

  std::int64_t RowsAtOnce(std::int64_t depth, bool copies) const {
    std::int64_t rows = std::max<std::int64_t>(1, op_.x.rows);
    if (copies || !CanMultiply(machine_, op_.gradients[0].dy)) {
      rows = std::min(rows, RowsThatFit(machine_.pieces().gradients, depth));
    }
    return drops() ? std::min(rows, machine_.pieces().sums.cols / kRowStep) : rows;
  }

  bool drops() const {
    return std::any_of(op_.linears.begin(), op_.linears.end(),
                       [](const LinearView& linear) { return linear.lora.dropout > 0; });
  }

  // [W ; A] (depth, cols)
  ConstMatrixView GroupWeights(std::int64_t depth, const Part& cols) const {
    const MatrixView place = PlaceIn(machine_.pieces().weight, depth, cols.count);
    std::int64_t begin = 0;
    for (const LinearView& linear : op_.linears) {
      const std::int64_t outputs = linear.weight.rows();
      DecodeWeight(machine_.stream, {linear.weight, 0, cols.begin, Rows(place, begin, outputs)});
      begin += outputs;
    }
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      if (!IsFolded(l)) continue;
      const ConstMatrixView a = ColumnsOf(LoraOf(l).a, cols);
      DropRows(machine_.stream, a, {}, Rows(place, begin, a.rows));
      begin += a.rows;
    }
    return place;
  }

  // [dy | du] (rows, depth)
  ConstMatrixView GroupGradients(std::int64_t depth, const Part& rows) const {
    const MatrixView place = PlaceIn(machine_.pieces().gradients, rows.count, depth);
    std::int64_t begin = 0;
    const auto append = [&](const ConstMatrixView& m) {
      DropRows(machine_.stream, RowsOf(m, rows), {}, Columns(place, begin, m.cols));
      begin += m.cols;
    };
    for (const LinearGradient& g : op_.gradients) append(g.dy);
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      if (IsFolded(l)) append(du_[l]);
    }
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
      machine_.blas.Run(machine_.stream, {.a = dy, .b = ColumnsOf(weights, part), .c = sum});
      const std::int64_t first_col = cols.begin + part.begin;
      for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
        const LoraView& lora = LoraOf(l);
        if (lora.dropout == 0) continue;
        machine_.blas.Run(
            machine_.stream,
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
  std::int64_t used_low_rank_ = 0;
  std::int64_t used_adapter_ = 0;
  // Of each linear, as products read them; a where it is not part of the product with the base.
  std::vector<ConstMatrixView> du_, a_;
};

}  // namespace

void LinearBackward(const Machine& machine, const ops::LinearBackward& op) {
  if (op.x.rows > 0) BackwardOf(machine, op).Run();
}

void WeightGradient(const Machine& machine, const ops::WeightGradient& op) {
  const Workspace::Pieces& pieces = machine.pieces();
  ForParts(op.dy.rows, RowsToSum(machine, op.x, 0, op.dy), [&](const Part& rows) {
    machine.blas.Run(machine.stream, {.a = Operand(machine, RowsOf(op.dy, rows), pieces.gradients),
                                      .b = Operand(machine, RowsOf(op.x, rows), pieces.inputs),
                                      .transpose_a = true,
                                      .beta = 1,
                                      .c = op.dw_acc});
  });
}

}  // namespace qlora::cuda
