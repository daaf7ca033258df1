//   u = drop(x) A^T;  y = [y +] x W^T + bias + scale u B^T
//
// Adapter and bias are part of the product with the base, whose sums are longer by the ranks and by
// two, since a bias takes two values of bfloat16 (its high and its low part). The linears of a
// group share one input, for which x is read once; so the weights of a linear have zeros for the
// columns of the others:
//   y = [x | scale u of every linear | 1 1] [W | 0 B 0 | high low]^T
// The columns behind x are written into its tail, or x is copied beside them. Where the y of a
// group are beside each other, they are one product.
#include <vector>

#include "backend/cuda/few_rows.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/operands.h"

namespace qlora::cuda {
namespace {

bool HasAdapter(const LinearView& linear) { return !linear.lora.a.empty(); }

// u of an adapter whose input is dropped, by a mask of its own.
void DroppedAdapterDown(const Machine& machine, const ops::Linear& op, std::int64_t l) {
  const LoraView& lora = op.linears[l].lora;
  const ConstMatrixView a = Operand(machine, lora.a, machine.pieces().a);
  ForParts(op.x.rows, RowsThatFit(machine.pieces().inputs, op.x.cols), [&](const Part& rows) {
    machine.Multiply({.a = AdapterInput(machine, op.x, lora, rows),
                      .b = a,
                      .transpose_b = true,
                      .c = RowsOf(op.outputs[l].u, rows)});
  });
}

// Linears that read the same x, with the u of dropped inputs.
class ForwardOf {
 public:
  ForwardOf(const Machine& machine, const ops::Linear& op) : machine_(machine), op_(op) {
    for (const LinearView& linear : op.linears) {
      outputs_ += linear.weight.rows();
      ranks_ += linear.lora.a.rows;
      if (HasAdapter(linear) && linear.lora.dropout == 0) plain_ranks_ += linear.lora.a.rows;
      if (!linear.bias.empty()) biases_ = kBiasColumns;
    }
  }

  // All weights are decoded once where there is room for them below each other. Otherwise a part of
  // a weight is decoded again for every part of the rows, of which there are several only where
  // there are so many rows that their products take far longer.
  void Run() const {
    const std::int64_t most = RowsThatFit(machine_.pieces().weight, depth());
    const ConstMatrixView a = StackedA();
    std::vector<ConstMatrixView> weights;
    if (outputs_ <= most) {
      std::int64_t used = 0;
      for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
        const Part all = {0, op_.linears[l].weight.rows()};
        weights.push_back(Weight(l, all, used * PaddedCols(depth())));
        used += all.count;
      }
    }
    const ConstMatrixView all_weights = weights.empty() ? ConstMatrixView{} : Below(weights);
    const LinearOutput all = all_weights.empty() ? LinearOutput{} : JoinedOutput();
    ForEvenParts(op_.x.rows, RowsAtOnce(), [&](const Part& rows) {
      const ConstMatrixView input = Input(rows, a);
      if (!all.y.empty()) return Multiply(input, all_weights, all, rows, {0, outputs_});
      for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
        ForEvenParts(op_.linears[l].weight.rows(), most, [&](const Part& features) {
          Multiply(input, weights.empty() ? Weight(l, features, 0) : weights[l], op_.outputs[l],
                   rows, features);
        });
      }
    });
  }

 private:
  std::int64_t depth() const { return op_.x.cols + ranks_ + biases_; }
  bool is_longer() const { return depth() > op_.x.cols; }

  // True where x itself has the columns behind it.
  bool HasTail() const {
    return CanMultiply(machine_, op_.x) && op_.x_tail.cols >= depth() - op_.x.cols;
  }

  std::int64_t RowsAtOnce() const {
    const bool in_place = is_longer() ? HasTail() : CanMultiply(machine_, op_.x);
    return in_place ? op_.x.rows : RowsThatFit(machine_.pieces().inputs, depth());
  }

  // The outputs of the group as the output of one linear, where they are beside each other.
  LinearOutput JoinedOutput() const {
    std::vector<MatrixView> ys;
    for (const LinearOutput& out : op_.outputs) {
      if (!out.base.empty()) return op_.outputs.size() == 1 ? out : LinearOutput{};
      ys.push_back(out.y);
    }
    return {Beside(ys), {}};
  }

  // Rows and output features of out.
  void Multiply(const ConstMatrixView& input, const ConstMatrixView& weight,
                const LinearOutput& out, const Part& rows, const Part& features) const {
    const bool adds = op_.store == Store::kAdd;
    const ConstMatrixView base =
        out.base.empty() ? out.base : ColumnsOf(RowsOf(out.base, rows), features);
    machine_.Multiply({.a = input,
                       .b = weight,
                       .transpose_b = true,
                       .beta = adds ? 1.0f : 0.0f,
                       .c = ColumnsOf(RowsOf(out.y, rows), features),
                       .base = base});
  }

  // (features, depth), behind `used` elements of the piece
  ConstMatrixView Weight(std::int64_t l, const Part& features, std::int64_t used) const {
    const LinearView& linear = op_.linears[l];
    const Part all = {0, op_.x.cols};
    if (!is_longer()) return WeightOperand(machine_, linear.weight, features, all, used);
    const MatrixView place = PlaceIn(machine_.pieces().weight, features.count, depth(), used);
    DecodeWeight(machine_.stream,
                 {linear.weight, features.begin, 0, Columns(place, 0, op_.x.cols)});
    const MatrixView rest = Columns(place, op_.x.cols, ranks_ + biases_);
    const std::int64_t rank = linear.lora.a.rows;
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < l; ++i) before += op_.linears[i].lora.a.rows;
    const std::int64_t end = linear.bias.empty() ? rest.cols : ranks_;  // of 0 B 0
    const ScaledCopy copies[] = {
        {.y = Columns(rest, 0, before)},
        {.x = rank > 0 ? RowsOf(linear.lora.b, features) : ConstMatrixView{},
         .y = Columns(rest, before, rank)},
        {.y = Columns(rest, before + rank, end - before - rank)}};
    CopyAll(machine_.stream, copies);
    if (!linear.bias.empty()) {
      BiasColumns(machine_.stream, ColumnsOf(linear.bias, features),
                  Columns(rest, ranks_, biases_));
    }
    return place;
  }

  // The A of all adapters without dropout (plain_ranks, I), one below the other.
  ConstMatrixView StackedA() const {
    if (plain_ranks_ == 0) return {};
    const MatrixView place = PlaceIn(machine_.pieces().a, plain_ranks_, op_.x.cols);
    std::vector<ScaledCopy> copies;
    std::int64_t begin = 0;
    for (const LinearView& linear : op_.linears) {
      if (!HasAdapter(linear) || linear.lora.dropout > 0) continue;
      copies.push_back({.x = linear.lora.a, .y = Rows(place, begin, linear.lora.a.rows)});
      begin += linear.lora.a.rows;
    }
    CopyAll(machine_.stream, copies);
    return place;
  }

  // (rows, depth). a: StackedA.
  ConstMatrixView Input(const Part& rows, const ConstMatrixView& a) const {
    ConstMatrixView input = RowsOf(op_.x, rows);
    if (!is_longer()) return Operand(machine_, input, machine_.pieces().inputs);
    MatrixView tail;  // (rows, depth - I)
    if (HasTail()) {
      tail = Columns(RowsOf(op_.x_tail, rows), 0, depth() - op_.x.cols);
      input.cols = depth();
    } else {
      const MatrixView place = PlaceIn(machine_.pieces().inputs, rows.count, depth());
      DropRows(machine_.stream, input, {}, Columns(place, 0, op_.x.cols));
      tail = Columns(place, op_.x.cols, depth() - op_.x.cols);
      input = place;
    }
    MatrixView all_u;  // (rows, plain_ranks)
    if (plain_ranks_ > 0) {
      all_u = PlaceIn(machine_.pieces().wide_low_rank, rows.count, plain_ranks_);
      machine_.Multiply(
          {.a = Columns(input, 0, op_.x.cols), .b = a, .transpose_b = true, .c = all_u});
    }
    std::vector<ScaledCopy> copies;
    std::int64_t begin = 0;
    std::int64_t plain = 0;
    for (std::int64_t l = 0; l < std::ssize(op_.linears); ++l) {
      if (!HasAdapter(op_.linears[l])) continue;
      const LoraView& lora = op_.linears[l].lora;
      const MatrixView out = RowsOf(op_.outputs[l].u, rows);
      ConstMatrixView u = out;
      if (lora.dropout == 0) {
        u = Columns(all_u, plain, lora.a.rows);
        plain += lora.a.rows;
        copies.push_back({.x = u, .y = out});
      }
      copies.push_back({.x = u, .scale = lora.scale, .y = Columns(tail, begin, lora.a.rows)});
      begin += lora.a.rows;
    }
    CopyAll(machine_.stream, copies);
    if (biases_ > 0) BiasColumns(machine_.stream, {}, Columns(tail, begin, biases_));
    return input;
  }

  const Machine& machine_;
  const ops::Linear op_;
  std::int64_t outputs_ = 0;      // features of all linears
  std::int64_t ranks_ = 0;        // of all linears
  std::int64_t plain_ranks_ = 0;  // of those whose input is not dropped
  std::int64_t biases_ = 0;       // columns: kBiasColumns where a linear has a bias
};

// Some of the linears of an op.
struct LinearSubset {
  std::vector<LinearView> linears;
  std::vector<LinearOutput> outputs;

  void Add(const ops::Linear& op, std::int64_t l) {
    linears.push_back(op.linears[l]);
    outputs.push_back(op.outputs[l]);
  }
  ops::Linear Of(const ops::Linear& op) const {
    return {linears, op.x, outputs, op.store, op.x_tail};
  }
};

void MultiplyFewRows(const Machine& machine, const ops::Linear& op) {
  LinearSubset plain;
  for (std::int64_t l = 0; l < std::ssize(op.linears); ++l) {
    if (HasAdapter(op.linears[l]) && op.linears[l].lora.dropout == 0) plain.Add(op, l);
  }
  if (!plain.linears.empty()) QueueAdaptersDown(machine.stream, plain.Of(op));
  const bool in_place = CanMultiply(machine, op.x);
  const std::int64_t at_once =
      in_place ? op.x.rows : RowsThatFit(machine.pieces().inputs, op.x.cols);
  ForParts(op.x.rows, at_once, [&](const Part& rows) {
    std::vector<LinearOutput> outputs;
    for (const LinearOutput& out : op.outputs) {
      outputs.push_back({RowsOf(out.y, rows), out.u.empty() ? out.u : RowsOf(out.u, rows)});
      if (out.base.empty()) continue;
      Queue(machine.stream, ops::Copy{RowsOf(out.base, rows), outputs.back().y});
    }
    QueueFewRows(machine.stream,
                 {op.linears, Operand(machine, RowsOf(op.x, rows), machine.pieces().inputs),
                  outputs, op.store},
                 machine.multiprocessors);
  });
}

}  // namespace

void LinearForward(const Machine& machine, const ops::Linear& op) {
  if (op.x.rows == 0) return;
  LinearSubset few, many;
  for (std::int64_t l = 0; l < std::ssize(op.linears); ++l) {
    const LinearView& linear = op.linears[l];
    if (HasAdapter(linear) && linear.lora.dropout > 0) DroppedAdapterDown(machine, op, l);
    const bool is_few = machine.compute() == DType::kBF16 && IsForFewRows(linear.weight, op.x.rows);
    (is_few ? few : many).Add(op, l);
  }
  if (!few.linears.empty()) MultiplyFewRows(machine, few.Of(op));
  if (!many.linears.empty()) ForwardOf(machine, many.Of(op)).Run();
}

}  // namespace qlora::cuda
