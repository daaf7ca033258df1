//   u = drop(x) A^T;  y = [y +] x W^T + bias + scale u B^T
//
// Adapter and bias are part of the product with the base, whose sums are longer by the ranks and by
// two, since a bias takes two values of bfloat16 (its high and its low part). The input is copied
// once for the linears of a group, so the weights of a linear have zeros for what belongs to the
// others:
//   y = [x | scale u of every linear | 1 1] [W | 0 B 0 | high low]^T
#include <vector>

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

// Linears that read the same x. A weight is decoded again for every part of rows, of which there
// are several only where there are so many rows that their products take far longer.
class ForwardOf {
 public:
  ForwardOf(const Machine& machine, const ops::Linear& op) : machine_(machine), op_(op) {
    for (const LinearView& linear : op.linears) {
      ranks_ += linear.lora.a.rows;
      if (!linear.bias.empty()) biases_ = kBiasColumns;
    }
  }

  void Run() const {
    const std::int64_t most = RowsThatFit(machine_.pieces().weight, depth());
    ForEvenParts(op_.x.rows, RowsAtOnce(), [&](const Part& rows) {
      const ConstMatrixView input = Input(rows);
      for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
        ForEvenParts(op_.linears[l].weight.rows(), most, [&](const Part& features) {
          machine_.blas.Run(machine_.stream,
                            {.a = input,
                             .b = Weight(l, features),
                             .transpose_b = true,
                             .beta = op_.store == Store::kAdd ? 1.0f : 0.0f,
                             .c = ColumnsOf(RowsOf(op_.outputs[l].y, rows), features)});
        });
      }
    });
  }

 private:
  std::int64_t depth() const { return op_.x.cols + ranks_ + biases_; }
  bool is_longer() const { return depth() > op_.x.cols; }

  std::int64_t RowsAtOnce() const {
    const bool copies = is_longer() || !CanMultiply(machine_, op_.x);
    return copies ? RowsThatFit(machine_.pieces().inputs, depth()) : op_.x.rows;
  }

  // (features, depth)
  ConstMatrixView Weight(std::int64_t l, const Part& features) const {
    const LinearView& linear = op_.linears[l];
    const Part all = {0, op_.x.cols};
    if (!is_longer()) return WeightOperand(machine_, linear.weight, features, all);
    const MatrixView place = PlaceIn(machine_.pieces().weight, features.count, depth());
    DecodeWeight(machine_.stream,
                 {linear.weight, features.begin, 0, Columns(place, 0, op_.x.cols)});
    const MatrixView rest = Columns(place, op_.x.cols, ranks_ + biases_);
    const std::int64_t rank = linear.lora.a.rows;
    if (rank < ranks_ || (biases_ > 0 && linear.bias.empty())) {
      Queue(machine_.stream, ops::Zero{rest});
    }
    if (rank > 0) {
      std::int64_t before = 0;
      for (std::int64_t i = 0; i < l; ++i) before += op_.linears[i].lora.a.rows;
      DropRows(machine_.stream, RowsOf(linear.lora.b, features), {}, Columns(rest, before, rank));
    }
    if (!linear.bias.empty()) {
      BiasColumns(machine_.stream, ColumnsOf(linear.bias, features),
                  Columns(rest, ranks_, biases_));
    }
    return place;
  }

  // (rows, depth)
  ConstMatrixView Input(const Part& rows) const {
    const ConstMatrixView x = RowsOf(op_.x, rows);
    if (!is_longer()) return Operand(machine_, x, machine_.pieces().inputs);
    const MatrixView place = PlaceIn(machine_.pieces().inputs, rows.count, depth());
    DropRows(machine_.stream, x, {}, Columns(place, 0, x.cols));
    std::int64_t begin = x.cols;
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      const LoraView& lora = op_.linears[l].lora;
      if (lora.a.empty()) continue;
      DropRows(machine_.stream, RowsOf(op_.outputs[l].u, rows), {.scale = lora.scale},
               Columns(place, begin, lora.a.rows));
      begin += lora.a.rows;
    }
    if (biases_ > 0) BiasColumns(machine_.stream, {}, Columns(place, begin, biases_));
    return place;
  }

  const Machine& machine_;
  const ops::Linear op_;
  std::int64_t ranks_ = 0;   // of all linears
  std::int64_t biases_ = 0;  // columns: kBiasColumns where a linear has a bias
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
  std::vector<LinearView> linears;
  std::vector<LinearOutput> outputs;
  for (std::int64_t l = 0; l < std::ssize(op.linears); ++l) {
    if (!op.linears[l].lora.a.empty()) AdapterDown(machine, op, l);
    if (HasFewRows(machine, op, l)) {
      MultiplyFewRows(machine, op, l);
    } else {
      linears.push_back(op.linears[l]);
      outputs.push_back(op.outputs[l]);
    }
  }
  if (!linears.empty()) ForwardOf(machine, {linears, op.x, outputs, op.store}).Run();
}

}  // namespace qlora::cuda
