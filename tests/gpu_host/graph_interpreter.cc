#include "gpu_host/graph_interpreter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "qlora/tensor.h"

namespace gpu_host {
namespace {

using qlora::BFloat16;
using qlora::ToBFloat16;
using qlora::ToFloat;
using Int = std::int64_t;

// A tensor (b, h, s, d).
struct Values {
  std::vector<Int> dims;
  std::vector<double> all;

  // A dimension of 1 is repeated.
  double At(Int b, Int h, Int s, Int d) const {
    const auto in = [](Int i, Int n) { return n == 1 ? Int{0} : i; };
    const Int row = (in(b, dims[0]) * dims[1] + in(h, dims[1])) * dims[2] + in(s, dims[2]);
    return all.at(static_cast<std::size_t>(row * dims[3] + in(d, dims[3])));
  }
};

// fn(b, h, s, d) for all elements.
template <typename Fn>
void ForElements(const std::vector<Int>& dims, const Fn& fn) {
  for (Int b = 0; b < dims[0]; ++b) {
    for (Int h = 0; h < dims[1]; ++h) {
      for (Int s = 0; s < dims[2]; ++s) {
        for (Int d = 0; d < dims[3]; ++d) fn(b, h, s, d);
      }
    }
  }
}

double Apply(cudnnPointwiseMode_t mode, double x, double b, bool condition) {
  switch (mode) {
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_IDENTITY:
      return x;
    case CUDNN_POINTWISE_CMP_LT:
      return x < b ? 1 : 0;
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1 : 0;
    case CUDNN_POINTWISE_CMP_GT:
      return x > b ? 1 : 0;
    case CUDNN_POINTWISE_LOGICAL_AND:
      return x != 0 && b != 0 ? 1 : 0;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return condition ? x : b;
    default:
      ADD_FAILURE() << "pointwise mode " << mode;
      return 0;
  }
}

class Interpreter {
 public:
  Interpreter(const std::map<Int, void*>& data, const qlora::cuda::AttentionPlanShape& shape)
      : data_(data), shape_(shape) {}

  void Run(const Node& op) {
    switch (op.type) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return Pointwise(op);
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return Multiply(op);
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return Reduce(op);
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: {
        // The graphs only transpose.
        const Values x = Load(op.Ref(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
        return Store(op.Ref(CUDNN_ATTR_OPERATION_RESHAPE_YDESC),
                     [&](Int b, Int h, Int s, Int d) { return x.At(b, h, d, s); });
      }
      default:
        ADD_FAILURE() << "operation " << op.type;
    }
  }

 private:
  // Where element (b, h, s, d) of an operand is, in elements; -1 behind the rows of its sequence.
  Int PlaceOf(const Node& t, Int b, Int h, Int s, Int d) const {
    const auto dims = t.All<Int>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto strides = t.All<Int>(CUDNN_ATTR_TENSOR_STRIDES);
    const Int inside = h * strides[1] + s * strides[2] + d * strides[3];
    const Node* offsets = t.Ref(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
    if (offsets == nullptr) return b * strides[0] + inside;
    const Int row = dims[2] == shape_.length ? s : d;
    if (row >= Integer(qlora::cuda::kQueryRows, b)) return -1;
    const Int begin = Integer(offsets->One<Int>(CUDNN_ATTR_TENSOR_UNIQUE_ID), b);
    // Heads that are summed afterwards have the offsets of the sum.
    const Int id = t.One<Int>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    const bool is_heads = id == qlora::cuda::kDkHeads || id == qlora::cuda::kDvHeads;
    return begin * (is_heads ? shape_.group() : 1) + inside;
  }
  Int Integer(Int id, Int index) const {
    return static_cast<const std::int32_t*>(data_.at(id))[index];
  }

  const Values& Load(const Node* t) {
    const auto known = inside_.find(t);
    if (known != inside_.end()) return known->second;
    EXPECT_FALSE(t->One<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) << "a tensor that nothing has made";
    Values values = {t->All<Int>(CUDNN_ATTR_TENSOR_DIMENSIONS), {}};
    const void* data = data_.at(t->One<Int>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
    const auto type = t->One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    ForElements(values.dims, [&](Int b, Int h, Int s, Int d) {
      const Int at = PlaceOf(*t, b, h, s, d);
      values.all.push_back(at < 0 ? 0
                           : type == CUDNN_DATA_BFLOAT16
                               ? ToFloat(static_cast<const BFloat16*>(data)[at])
                           : type == CUDNN_DATA_FLOAT ? static_cast<const float*>(data)[at]
                                                      : static_cast<const std::int32_t*>(data)[at]);
    });
    return inside_[t] = std::move(values);
  }

  // Stores fn(b, h, s, d); in memory where the tensor is an operand, and whoever needs it reads it
  // there.
  template <typename Fn>
  void Store(const Node* t, const Fn& fn) {
    Values values = {t->All<Int>(CUDNN_ATTR_TENSOR_DIMENSIONS), {}};
    const bool is_virtual = t->One<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    void* data = is_virtual ? nullptr : data_.at(t->One<Int>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
    const auto type = t->One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    ForElements(values.dims, [&](Int b, Int h, Int s, Int d) {
      if (is_virtual) return values.all.push_back(fn(b, h, s, d));
      const Int at = PlaceOf(*t, b, h, s, d);
      if (at < 0) return;
      const auto value = static_cast<float>(fn(b, h, s, d));
      if (type == CUDNN_DATA_BFLOAT16) {
        static_cast<BFloat16*>(data)[at] = ToBFloat16(value);
      } else {
        static_cast<float*>(data)[at] = value;
      }
    });
    if (is_virtual) inside_[t] = std::move(values);
  }

  void Pointwise(const Node& op) {
    const Node* kind = op.Ref(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = kind->One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const Node* to = op.Ref(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
      const Int axis = kind->One<Int>(CUDNN_ATTR_POINTWISE_AXIS, -1);
      return Store(to,
                   [&](Int, Int, Int s, Int d) { return static_cast<double>(axis == 2 ? s : d); });
    }
    const auto operand = [&](int name) {
      const Node* t = op.Ref(name);
      return t == nullptr ? Values{{1, 1, 1, 1}, {0}} : Load(t);
    };
    const Values x = operand(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const Values b = operand(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const Values t = operand(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    Store(to, [&](Int i, Int h, Int s, Int d) {
      return Apply(mode, x.At(i, h, s, d), b.At(i, h, s, d), t.At(i, h, s, d) != 0);
    });
  }

  // Rows, columns and terms behind those of a sequence are zeros. Heads of k and v are shared.
  void Multiply(const Node& op) {
    const Values a = Load(op.Ref(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    const Values b = Load(op.Ref(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    const Node* to = op.Ref(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    EXPECT_EQ(a.dims[3], b.dims[2]);
    const auto count = [&](int name, Int sequence, Int all) {
      const Node* t = op.Ref(name);
      return t == nullptr ? all : std::min(all, static_cast<Int>(Load(t).At(sequence, 0, 0, 0)));
    };
    const auto dims = to->All<Int>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    Store(to, [&](Int i, Int h, Int s, Int d) {
      if (s >= count(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, i, dims[2])) return 0.0;
      if (d >= count(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, i, dims[3])) return 0.0;
      const Int terms = count(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, i, a.dims[3]);
      double sum = 0;
      for (Int k = 0; k < terms; ++k) {
        sum += a.At(i, h / (dims[1] / a.dims[1]), s, k) * b.At(i, h / (dims[1] / b.dims[1]), k, d);
      }
      return sum;
    });
  }

  // Over the last dimension, or over the heads of a group.
  void Reduce(const Node& op) {
    const Values x = Load(op.Ref(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    const Node* kind = op.Ref(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const bool is_max =
        kind->One<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const Node* to = op.Ref(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    const auto dims = to->All<Int>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const Int heads = x.dims[1] / dims[1];
    Store(to, [&](Int b, Int h, Int s, Int d) {
      double all = is_max ? -std::numeric_limits<double>::infinity() : 0;
      for (Int i = 0; i < heads; ++i) {
        const Int end = dims[3] == 1 ? x.dims[3] : d + 1;
        for (Int j = dims[3] == 1 ? 0 : d; j < end; ++j) {
          const double v = x.At(b, h * heads + i, s, j);
          all = is_max ? std::max(all, v) : all + v;
        }
      }
      return all;
    });
  }

  const std::map<Int, void*>& data_;
  const qlora::cuda::AttentionPlanShape& shape_;
  std::map<const Node*, Values> inside_;  // and operands that were read
};

}  // namespace

void RunGraph(const Node& graph, const std::map<Int, void*>& data,
              const qlora::cuda::AttentionPlanShape& shape) {
  Interpreter interpreter(data, shape);
  for (const void* op : graph.All<void*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    interpreter.Run(*static_cast<const Node*>(op));
  }
}

}  // namespace gpu_host
