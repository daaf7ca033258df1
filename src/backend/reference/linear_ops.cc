#include "backend/reference/linear_ops.h"

#include <vector>

#include "backend/expert_ranges.h"
#include "backend/reference/linear.h"
#include "backend/reference/views.h"

namespace qlora::reference {
namespace {

// Rows of each adapter are a Linear of their own.
void RunRanges(const ops::Linear& op, FrozenProducts frozen) {
  for (const LoraRows& range : op.ranges) {
    std::vector<LinearView> linears(op.linears.begin(), op.linears.end());
    std::vector<LinearOutput> outputs(op.outputs.begin(), op.outputs.end());
    const auto cut = [&](auto& m) {
      if (!m.empty()) m = Rows(m, range.begin, range.rows);
    };
    for (std::size_t l = 0; l < linears.size(); ++l) {
      linears[l].lora = range.loras[l];
      cut(outputs[l].y);
      cut(outputs[l].base);
      cut(outputs[l].u);
      outputs[l].u = Columns(outputs[l].u, 0, range.loras[l].a.rows);
    }
    ConstMatrixView x = op.x;
    cut(x);
    Run(ops::Linear{linears, x, outputs, op.store}, frozen);
  }
}

}  // namespace

// The weight is widened for each call: as large as the dense matrix in T.
void Run(const ops::Linear& op, FrozenProducts frozen) {
  if (!op.ranges.empty()) return RunRanges(op, frozen);
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    for (std::size_t l = 0; l < op.linears.size(); ++l) {
      const std::vector<T> weight = Widened<T>(op.linears[l].weight);
      const Mat<const T> base = TypedConst<T>(op.outputs[l].base);
      for (std::int64_t n = 0; n < base.rows; ++n) {
        CopyRow(base, n, Typed<T>(op.outputs[l].y), n, Store::kSet);
      }
      LinearOf<T> linear = Typed<T>(op.linears[l], weight);
      std::vector<T> product;
      if (frozen != FrozenProducts::kFloat && int8::HasCodes(op.linears[l].weight)) {
        const std::int64_t out = linear.weight.rows;
        product = Int8Product<T>(op.linears[l].weight, TypedConst<T>(op.x), out, int8::Multiply);
        linear.product = {product.data(), op.x.rows, out, out};
      }
      Linear<T>(linear, TypedConst<T>(op.x), Typed<T>(op.outputs[l].y), Typed<T>(op.outputs[l].u),
                op.store);
    }
  });
}

void Run(const ops::LinearBackward& op, FrozenProducts frozen) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    for (std::size_t l = 0; l < op.linears.size(); ++l) {
      const std::vector<T> weight = Widened<T>(op.linears[l].weight);
      LinearOf<T> linear = Typed<T>(op.linears[l], weight);
      std::vector<T> product;
      if (frozen == FrozenProducts::kInt8 && int8::HasCodes(op.linears[l].weight) &&
          !op.dx.empty()) {
        const std::int64_t in = linear.weight.cols;
        product = Int8Product<T>(op.linears[l].weight, TypedConst<T>(op.gradients[l].dy), in,
                                 int8::MultiplyTransposed);
        linear.product = {product.data(), op.x.rows, in, in};
      }
      // All linears of the group add to one dx: the first one as the op asks, each other one on
      // top.
      const LinearGradient& g = op.gradients[l];
      std::vector<T> du(linear.a.rows);
      LinearBackward<T>(linear, TypedConst<T>(op.x), TypedConst<T>(g.dy), TypedConst<T>(g.u),
                        Typed<T>(g.da_acc), Typed<T>(g.db_acc),
                        Mat<T>{du.data(), 1, linear.a.rows, linear.a.rows}, Typed<T>(op.dx),
                        l == 0 ? op.store : Store::kAdd);
    }
  });
}

// Each expert is a Linear over the rows of its slots.
void Run(const ops::ExpertLinear& op, FrozenProducts frozen) {
  ForEachExpert(op, [&](const ops::Linear& linear) { Run(linear, frozen); });
}
void Run(const ops::ExpertLinearBackward& op, FrozenProducts frozen) {
  ForEachExpert(op, [&](const ops::LinearBackward& linear) { Run(linear, frozen); });
}

}  // namespace qlora::reference
