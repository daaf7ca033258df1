//   u = drop(x) A^T;  y = [y +] x W^T + bias + scale u B^T
//
// Adapter and bias are part of the product with the base, whose sums are longer by the rank and by
// two, since a bias takes two values of bfloat16 (its high and its low part):
//   y = [x | scale u | 1 1] [W | B | high low]^T
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

// One linear of the group.
class ForwardOf {
 public:
  ForwardOf(const Machine& machine, const ops::Linear& op, std::int64_t l)
      : machine_(machine), op_(op), linear_(op.linears[l]), out_(op.outputs[l]) {}

  void Run() const {
    const std::int64_t most = RowsThatFit(machine_.pieces().weight, depth());
    ForEvenParts(linear_.weight.rows(), most, [&](const Part& features) {
      const ConstMatrixView weight = Weight(features);
      ForEvenParts(op_.x.rows, RowsAtOnce(), [&](const Part& rows) {
        const MatrixView y = ColumnsOf(RowsOf(out_.y, rows), features);
        machine_.blas.Run(machine_.stream, {.a = Input(rows),
                                            .b = weight,
                                            .transpose_b = true,
                                            .beta = op_.store == Store::kAdd ? 1.0f : 0.0f,
                                            .c = y});
      });
    });
  }

 private:
  std::int64_t rank() const { return linear_.lora.a.rows; }
  std::int64_t biases() const { return linear_.bias.empty() ? 0 : kBiasColumns; }
  std::int64_t depth() const { return op_.x.cols + rank() + biases(); }
  bool is_longer() const { return depth() > op_.x.cols; }

  std::int64_t RowsAtOnce() const {
    const bool copies = is_longer() || !CanMultiply(machine_, op_.x);
    return copies ? RowsThatFit(machine_.pieces().inputs, depth()) : op_.x.rows;
  }

  // [W | B | high low] (features, depth)
  ConstMatrixView Weight(const Part& features) const {
    const Part all = {0, op_.x.cols};
    if (!is_longer()) return WeightOperand(machine_, linear_.weight, features, all);
    const MatrixView place = PlaceIn(machine_.pieces().weight, features.count, depth());
    DecodeWeight(machine_.stream,
                 {linear_.weight, features.begin, 0, Columns(place, 0, op_.x.cols)});
    if (rank() > 0) {
      DropRows(machine_.stream, RowsOf(linear_.lora.b, features), {},
               Columns(place, op_.x.cols, rank()));
    }
    if (biases() > 0) {
      BiasColumns(machine_.stream, ColumnsOf(linear_.bias, features),
                  Columns(place, op_.x.cols + rank(), biases()));
    }
    return place;
  }

  // [x | scale u | 1 1] (rows, depth)
  ConstMatrixView Input(const Part& rows) const {
    const ConstMatrixView x = RowsOf(op_.x, rows);
    if (!is_longer()) return Operand(machine_, x, machine_.pieces().inputs);
    const MatrixView place = PlaceIn(machine_.pieces().inputs, rows.count, depth());
    DropRows(machine_.stream, x, {}, Columns(place, 0, x.cols));
    if (rank() > 0) {
      DropRows(machine_.stream, RowsOf(out_.u, rows), {.scale = linear_.lora.scale},
               Columns(place, x.cols, rank()));
    }
    if (biases() > 0) BiasColumns(machine_.stream, {}, Columns(place, x.cols + rank(), biases()));
    return place;
  }

  const Machine& machine_;
  const ops::Linear& op_;
  const LinearView& linear_;
  const LinearOutput& out_;
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
