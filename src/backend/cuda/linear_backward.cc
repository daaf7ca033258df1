//   du = scale dy B;  db += scale dy^T u;  da += du^T drop(x);
//   dx = [dx +] the sum over the group of dy W + drop'(du A)
#include "backend/cuda/linear.h"
#include "backend/cuda/operands.h"

namespace qlora::cuda {
namespace {

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

    const std::int64_t at_once =
        std::min(RowsThatFit(pieces.gradients, g.dy.cols), RowsThatFit(pieces.inputs, op_.x.cols));
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
    a_[l] = Operand(machine_, lora.a, pieces.a, used_adapter_);
    used_low_rank_ += padded;
    used_adapter_ += R * PaddedCols(lora.a.cols);
  }

  ConstMatrixView CopyOrSelf(const ConstMatrixView& m, const MatrixView& room) const {
    if (CanMultiply(machine_, m)) return m;
    DropRows(machine_.stream, m, {}, room);
    return room;
  }

  // Columns of dx, so that a product goes over all output features at once.
  void InputGradient() {
    const bool rounds = op_.dx.dtype != DType::kF32;
    const bool is_one_product = op_.linears.size() == 1 && LoraOf(0).a.empty();
    direct_ = !rounds || (is_one_product && machine_.compute() == op_.dx.dtype);
    std::int64_t outputs = 0;
    for (const LinearView& linear : op_.linears) outputs += linear.weight.rows();
    ForParts(op_.dx.cols, ColsThatFit(machine_.pieces().weight, outputs), [&](const Part& cols) {
      const std::vector<ConstMatrixView> weights = WeightColumns(cols);
      ForParts(op_.x.rows, RowsAtOnce(), [&](const Part& rows) {
        if (direct_) {
          return Sum(weights, rows, cols, {0, cols.count}, ColumnsOf(RowsOf(op_.dx, rows), cols),
                     op_.store);
        }
        ForParts(cols.count, ColsThatFit(machine_.pieces().sums, rows.count),
                 [&](const Part& part) { Rounded(weights, rows, cols, part); });
      });
    });
  }

  // Columns of all weights of the group, one below the other in the workspace.
  std::vector<ConstMatrixView> WeightColumns(const Part& cols) const {
    std::vector<ConstMatrixView> weights;
    std::int64_t used = 0;
    for (const LinearView& linear : op_.linears) {
      const std::int64_t outputs = linear.weight.rows();
      weights.push_back(WeightOperand(machine_, linear.weight, {0, outputs}, cols, used));
      used += outputs * PaddedCols(cols.count);
    }
    return weights;
  }

  std::int64_t RowsAtOnce() const {
    std::int64_t rows =
        direct_ ? op_.x.rows : std::min(op_.x.rows, machine_.workspace.budget().sum_rows);
    for (const LinearGradient& g : op_.gradients) {
      if (CanMultiply(machine_, g.dy)) continue;
      rows = std::min(rows, RowsThatFit(machine_.pieces().gradients, g.dy.cols));
    }
    return rows;
  }

  // sum = [sum +] dy W + drop'(du A), for columns `part` of the columns `cols` of dx.
  void Sum(const std::vector<ConstMatrixView>& weights, const Part& rows, const Part& cols,
           const Part& part, const MatrixView& sum, Store store) {
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      machine_.blas.Run(machine_.stream, {.a = Gradient(l, rows),
                                          .b = ColumnsOf(weights[l], part),
                                          .beta = l > 0 || store == Store::kAdd ? 1.0f : 0.0f,
                                          .c = sum});
      if (!LoraOf(l).a.empty()) AddAdapter(l, rows, {cols.begin + part.begin, part.count}, sum);
    }
  }

  void AddAdapter(std::int64_t l, const Part& rows, const Part& cols, const MatrixView& sum) {
    const LoraView& lora = LoraOf(l);
    Gemm gemm = {.a = RowsOf(du_[l], rows), .b = ColumnsOf(a_[l], cols), .beta = 1, .c = sum};
    if (lora.dropout == 0) return machine_.blas.Run(machine_.stream, gemm);
    // A product of its own, a part of the columns at a time, whose elements are dropped.
    ForParts(cols.count, ColsThatFit(machine_.pieces().more_sums, rows.count),
             [&](const Part& part) {
               gemm.b = ColumnsOf(a_[l], {cols.begin + part.begin, part.count});
               gemm.beta = 0;
               gemm.c = PlaceIn(machine_.pieces().more_sums, rows.count, part.count);
               machine_.blas.Run(machine_.stream, gemm);
               AddDropped(machine_.stream, gemm.c,
                          {.dropout = lora.dropout,
                           .key = lora.dropout_key,
                           .in_features = op_.x.cols,
                           .first_row = rows.begin,
                           .first_col = cols.begin + part.begin},
                          ColumnsOf(sum, part));
             });
  }

  void Rounded(const std::vector<ConstMatrixView>& weights, const Part& rows, const Part& cols,
               const Part& part) {
    const MatrixView sum = PlaceIn(machine_.pieces().sums, rows.count, part.count);
    Sum(weights, rows, cols, part, sum, Store::kSet);
    AddBias(machine_.stream, sum, {},
            ColumnsOf(RowsOf(op_.dx, rows), {cols.begin + part.begin, part.count}), op_.store);
  }

  const Machine& machine_;
  const ops::LinearBackward& op_;
  bool direct_ = false;
  std::int64_t used_low_rank_ = 0;
  std::int64_t used_adapter_ = 0;
  std::vector<ConstMatrixView> du_, a_;  // of each linear, as products read them
};

}  // namespace

void LinearBackward(const Machine& machine, const ops::LinearBackward& op) {
  if (op.x.rows > 0) BackwardOf(machine, op).Run();
}

void WeightGradient(const Machine& machine, const ops::WeightGradient& op) {
  const Workspace::Pieces& pieces = machine.pieces();
  const std::int64_t at_once =
      std::min(RowsThatFit(pieces.gradients, op.dy.cols), RowsThatFit(pieces.inputs, op.x.cols));
  ForParts(op.dy.rows, at_once, [&](const Part& rows) {
    machine.blas.Run(machine.stream, {.a = Operand(machine, RowsOf(op.dy, rows), pieces.gradients),
                                      .b = Operand(machine, RowsOf(op.x, rows), pieces.inputs),
                                      .transpose_a = true,
                                      .beta = 1,
                                      .c = op.dw_acc});
  });
}

}  // namespace qlora::cuda
