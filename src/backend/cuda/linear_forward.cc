//   u = drop(x) A^T;  y = [y +] x W^T + bias + scale u B^T
#include "backend/cuda/few_rows.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/operands.h"

namespace qlora::cuda {
namespace {

void AdapterDown(const Machine& machine, const ops::Linear& op, std::int64_t l) {
  const LoraView& lora = op.linears[l].lora;
  const ConstMatrixView a = Operand(machine, lora.a, machine.pieces().a);
  ForParts(op.x.rows, RowsThatFit(machine.pieces().inputs, op.x.cols), [&](const Part& rows) {
    machine.blas.Run(machine.stream, {.a = AdapterInput(machine, op.x, lora, rows),
                                      .b = a,
                                      .transpose_b = true,
                                      .c = RowsOf(op.outputs[l].u, rows)});
  });
}

// One linear of the group. Of the result y:
//   direct   float32, or a single product: products write and add to y itself
//   else     sums in float32 of a part of the rows and columns, then rounded into y
class ForwardOf {
 public:
  ForwardOf(const Machine& machine, const ops::Linear& op, std::int64_t l)
      : machine_(machine), op_(op), linear_(op.linears[l]), y_(op.outputs[l].y) {
    if (has_adapter()) {
      u_ = Operand(machine, op.outputs[l].u, machine.pieces().low_rank);
      b_ = Operand(machine, linear_.lora.b, machine.pieces().b);
    }
  }

  void Run() {
    const bool rounds = y_.dtype != DType::kF32;
    const bool is_one_product = !has_adapter() && linear_.bias.empty();
    direct_ = !rounds || (is_one_product && machine_.compute() == y_.dtype);
    const std::int64_t in = op_.x.cols;
    const std::int64_t most = RowsThatFit(machine_.pieces().weight, in);
    ForParts(linear_.weight.rows(), most, [&](const Part& features) {
      const ConstMatrixView weight = WeightOperand(machine_, linear_.weight, features, {0, in});
      ForParts(op_.x.rows, RowsAtOnce(), [&](const Part& rows) {
        const ConstMatrixView x = Operand(machine_, RowsOf(op_.x, rows), machine_.pieces().inputs);
        if (direct_) return Direct(x, weight, rows, features);
        ForParts(features.count, ColsThatFit(machine_.pieces().sums, rows.count),
                 [&](const Part& of_weight) {
                   Summed(x, RowsOf(weight, of_weight), rows,
                          {features.begin + of_weight.begin, of_weight.count});
                 });
      });
    });
  }

 private:
  bool has_adapter() const { return !linear_.lora.a.empty(); }

  std::int64_t RowsAtOnce() const {
    const bool copies_x = !CanMultiply(machine_, op_.x);
    std::int64_t rows = std::max<std::int64_t>(1, op_.x.rows);
    if (copies_x) rows = std::min(rows, RowsThatFit(machine_.pieces().inputs, op_.x.cols));
    if (!direct_) rows = std::min(rows, machine_.workspace.budget().sum_rows);
    return rows;
  }

  void AddAdapter(const Part& rows, const Part& features, const MatrixView& sum) {
    if (!has_adapter()) return;
    machine_.blas.Run(machine_.stream, {.a = RowsOf(u_, rows),
                                        .b = RowsOf(b_, features),
                                        .transpose_b = true,
                                        .alpha = linear_.lora.scale,
                                        .beta = 1,
                                        .c = sum});
  }

  ConstMatrixView BiasOf(const Part& features) const {
    return linear_.bias.empty() ? linear_.bias : ColumnsOf(linear_.bias, features);
  }

  void Direct(const ConstMatrixView& x, const ConstMatrixView& weight, const Part& rows,
              const Part& features) {
    const MatrixView y = ColumnsOf(RowsOf(y_, rows), features);
    machine_.blas.Run(machine_.stream, {.a = x,
                                        .b = weight,
                                        .transpose_b = true,
                                        .beta = op_.store == Store::kAdd ? 1.0f : 0.0f,
                                        .c = y});
    AddAdapter(rows, features, y);
    if (!linear_.bias.empty()) AddBias(machine_.stream, y, BiasOf(features), y, Store::kSet);
  }

  void Summed(const ConstMatrixView& x, const ConstMatrixView& weight, const Part& rows,
              const Part& features) {
    const MatrixView sum = PlaceIn(machine_.pieces().sums, rows.count, features.count);
    machine_.blas.Run(machine_.stream, {.a = x, .b = weight, .transpose_b = true, .c = sum});
    AddAdapter(rows, features, sum);
    AddBias(machine_.stream, sum, BiasOf(features), ColumnsOf(RowsOf(y_, rows), features),
            op_.store);
  }

  const Machine& machine_;
  const ops::Linear& op_;
  const LinearView& linear_;
  const MatrixView y_;
  bool direct_ = false;
  ConstMatrixView u_, b_;  // as products read them
};

bool HasFewRows(const Machine& machine, const ops::Linear& op, std::int64_t l) {
  return machine.compute() == DType::kBF16 && IsForFewRows(op.linears[l].weight, op.x.rows);
}
void MultiplyFewRows(const Machine& machine, const ops::Linear& op, std::int64_t l) {
  const LinearView& linear = op.linears[l];
  const std::int64_t room = FewRowsRoom(op.x.rows, linear.weight.rows(), op.x.cols);
  Queue(machine.stream,
        FewRows{.x = op.x,
                .weight = linear.weight.quantized,
                .bias = linear.bias,
                .u = op.outputs[l].u,
                .b = linear.lora.b,
                .scale = linear.lora.scale,
                .y = op.outputs[l].y,
                .store = op.store,
                .partial = PlaceIn(machine.pieces().few_rows, 1, room).Row<float>(0)});
}

}  // namespace

void LinearForward(const Machine& machine, const ops::Linear& op) {
  if (op.x.rows == 0) return;
  for (std::int64_t l = 0; l < std::ssize(op.linears); ++l) {
    if (!op.linears[l].lora.a.empty()) AdapterDown(machine, op, l);
    if (HasFewRows(machine, op, l)) {
      MultiplyFewRows(machine, op, l);
    } else {
      ForwardOf(machine, op, l).Run();
    }
  }
}

}  // namespace qlora::cuda
