#include "backend/cuda/device/attention_plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace qlora::cuda {
namespace {

using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kNoAxis = -1;

// A tensor of a graph: (sequences, heads, rows, columns).
struct Tensor {
  cudnnDataType_t type;
  Numbers dims;
  Numbers strides;
  std::int64_t id = 0;           // an AttentionOperand, or 0: exists inside kernels alone
  bool is_by_value = false;      // in host memory
  Descriptor offsets = nullptr;  // where sequences begin; null: at multiples of the first stride
};

// The operations of attention, in the order in which cuDNN knows them as one kernel.
class Graph {
 public:
  Graph(Descriptors& made, const AttentionPlanShape& shape) : made_(made), s_(shape) {
    query_rows_ = Counts(kQueryRows);
    key_rows_ = Counts(kKeyRows);
    if (s_.backward) {
      Backward();
    } else {
      Forward();
    }
  }
  const std::vector<Descriptor>& operations() const { return operations_; }

 private:
  // ---- Tensors.

  Descriptor Make(const Tensor& t) {
    const std::int64_t id = t.id != 0 ? t.id : next_virtual_++;
    const bool is_virtual = t.id == 0;
    // Make leaves out a null offset.
    return made_.Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR,
                      {{CUDNN_ATTR_TENSOR_DATA_TYPE, t.type},
                       {CUDNN_ATTR_TENSOR_DIMENSIONS, t.dims},
                       {CUDNN_ATTR_TENSOR_STRIDES, t.strides},
                       {CUDNN_ATTR_TENSOR_UNIQUE_ID, id},
                       {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{16}},
                       {CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual},
                       {CUDNN_ATTR_TENSOR_IS_BY_VALUE, t.is_by_value},
                       {CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, t.offsets}});
  }
  Descriptor Counts(std::int64_t id) {
    return Make({CUDNN_DATA_INT32, {s_.sequences, 1, 1, 1}, {1, 1, 1, 1}, id});
  }
  Descriptor Offsets(std::int64_t operand) {
    return Make({CUDNN_DATA_INT32, {s_.sequences + 1, 1, 1, 1}, {1, 1, 1, 1}, kOffsets + operand});
  }
  Descriptor Scalar(std::int64_t id) {
    return Make({CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, id, true});
  }
  // Rows of packed sequences, `stride` elements apart.
  Descriptor Rows(std::int64_t id, std::int64_t heads, std::int64_t stride) {
    return Make(RowsTensor(id, heads, stride, Offsets(id)));
  }
  Tensor RowsTensor(std::int64_t id, std::int64_t heads, std::int64_t stride, Descriptor offsets,
                    cudnnDataType_t type = CUDNN_DATA_BFLOAT16) const {
    return {type,
            {s_.sequences, heads, s_.length, s_.head_dim},
            {s_.length * stride, s_.head_dim, stride, 1},
            id,
            false,
            offsets};
  }
  // The transposed matrix: the same memory with exchanged strides.
  static Tensor Transposed(Tensor t) {
    std::swap(t.dims[2], t.dims[3]);
    std::swap(t.strides[2], t.strides[3]);
    return t;
  }
  Descriptor RowValues(std::int64_t id, Descriptor offsets) {
    return Make({CUDNN_DATA_FLOAT,
                 {s_.sequences, s_.heads, s_.length, 1},
                 {s_.length * s_.lse, 1, s_.lse, 1},
                 id,
                 false,
                 offsets});
  }
  // A value of each row, inside kernels.
  Descriptor RowValue() {
    return Make({CUDNN_DATA_FLOAT,
                 {s_.sequences, s_.heads, s_.length, 1},
                 {s_.heads * s_.length, s_.length, 1, 1}});
  }
  // A value of each row and key, inside kernels.
  Tensor ScoresTensor(cudnnDataType_t type) const {
    const std::int64_t matrix = s_.length * s_.length;
    return {type,
            {s_.sequences, s_.heads, s_.length, s_.length},
            {s_.heads * matrix, matrix, s_.length, 1}};
  }
  Descriptor Scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) { return Make(ScoresTensor(type)); }

  // ---- Operations.

  // y = mode(x, b), or of x alone; for a selection: t ? x : b.
  void Pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t type, Descriptor x, Descriptor b,
                 Descriptor y, Descriptor t = nullptr, std::int64_t axis = kNoAxis) {
    const auto kind_type = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
    const Attribute what(CUDNN_ATTR_POINTWISE_MODE, mode);
    const Attribute precision(CUDNN_ATTR_POINTWISE_MATH_PREC, type);
    const Attribute along(CUDNN_ATTR_POINTWISE_AXIS, axis);
    const Descriptor kind = axis == kNoAxis ? made_.Make(kind_type, {what, precision})
                                            : made_.Make(kind_type, {what, precision, along});
    Add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
        {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind},
         {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
         {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
         {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t},
         {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
  }
  // The same into new scores.
  Descriptor ToScores(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b = nullptr,
                      cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const Descriptor y = Scores(type);
    Pointwise(mode, CUDNN_DATA_FLOAT, x, b, y);
    return y;
  }
  // A comparison, or the conjunction of two.
  Descriptor Condition(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b) {
    const Descriptor y = Scores(CUDNN_DATA_BOOLEAN);
    Pointwise(mode, CUDNN_DATA_BOOLEAN, x, b, y);
    return y;
  }
  // The row (axis 2) or the key (axis 3) of each score.
  Descriptor Index(Descriptor x, std::int64_t axis) {
    const Descriptor y = Scores(CUDNN_DATA_INT32);
    Pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, x, nullptr, y, nullptr, axis);
    return y;
  }
  Descriptor Select(Descriptor x, std::int64_t hidden, Descriptor condition) {
    const Descriptor y = Scores();
    Pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, Scalar(hidden), y, condition);
    return y;
  }
  void Reduce(cudnnReduceTensorOp_t mode, Descriptor x, Descriptor y) {
    const Descriptor kind = made_.Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                                       {{CUDNN_ATTR_REDUCTION_OPERATOR, mode},
                                        {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT}});
    Add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
        {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x},
         {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y},
         {CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind}});
  }
  Descriptor ToRowValue(cudnnReduceTensorOp_t mode, Descriptor x) {
    const Descriptor y = RowValue();
    Reduce(mode, x, y);
    return y;
  }
  // c = a b, with the true numbers of rows m, columns n and terms k of each sequence.
  void Multiply(Descriptor a, Descriptor b, Descriptor c, Descriptor m, Descriptor n,
                Descriptor k) {
    const Descriptor kind = made_.Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                                       {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT}});
    Add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
        {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
         {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
         {CUDNN_ATTR_OPERATION_MATMUL_CDESC, c},
         {CUDNN_ATTR_OPERATION_MATMUL_DESC, kind},
         {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m},
         {CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n},
         {CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k}});
  }
  Descriptor Reshape(Descriptor x, const Tensor& like) {
    const Descriptor y = Make(like);
    Add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
        {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y}});
    return y;
  }
  void Add(cudnnBackendDescriptorType_t type, std::initializer_list<Attribute> attributes) {
    operations_.push_back(made_.Make(type, attributes));
  }

  // ---- Parts of both passes.

  // scale q k^T
  Descriptor ScaledScores(Descriptor q, Descriptor k_transposed, Descriptor scale) {
    // The sum runs over head_dim, which all sequences share: m and n have true numbers, k has none.
    const Descriptor dots = Scores();
    Multiply(q, k_transposed, dots, query_rows_, key_rows_, nullptr);
    return ToScores(CUDNN_POINTWISE_MUL, dots, scale);
  }
  // Hides rows and keys behind the end of a sequence.
  Descriptor WithoutPadding(Descriptor x) {
    const Descriptor row = Index(x, 2);
    const Descriptor key = Index(x, 3);
    const Descriptor is_row = Condition(CUDNN_POINTWISE_CMP_LT, row, query_rows_);
    const Descriptor is_key = Condition(CUDNN_POINTWISE_CMP_LT, key, key_rows_);
    return Select(x, kHiddenPadding, Condition(CUDNN_POINTWISE_LOGICAL_AND, is_row, is_key));
  }
  // Hides keys with row < key, and those with key + window <= row.
  Descriptor Causal(Descriptor x) {
    const Descriptor row = Index(x, 2);
    const Descriptor key = Index(x, 3);
    x = Select(x, kHiddenFuture, Condition(CUDNN_POINTWISE_CMP_GE, row, key));
    if (!s_.windowed) return x;
    const Descriptor row_again = Index(x, 2);
    const Descriptor key_again = Index(x, 3);
    const Descriptor end = Scores();
    // float32 counts rows exactly up to 2^24.
    Pointwise(CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, key_again, Scalar(kWindow), end, nullptr, 3);
    return Select(x, kHiddenPast, Condition(CUDNN_POINTWISE_CMP_GT, end, row_again));
  }

  // o = softmax(scores) v; lse = max + log(sum(exp(scores - max)))
  void Forward() {
    const Descriptor q = Rows(kQ, s_.heads, s_.q);
    const Descriptor k = Make(Transposed(RowsTensor(kK, s_.kv_heads, s_.k, Offsets(kK))));
    const Descriptor v = Rows(kV, s_.kv_heads, s_.v);
    const Descriptor o = Rows(kO, s_.heads, s_.o);
    const Descriptor lse = RowValues(kLse, Offsets(kLse));
    const Descriptor scores = Causal(WithoutPadding(ScaledScores(q, k, Scalar(kScale))));
    // Scores minus the largest are at most 0, so no exponential overflows.
    const Descriptor most = ToRowValue(CUDNN_REDUCE_TENSOR_MAX, scores);
    const Descriptor e = ToScores(CUDNN_POINTWISE_EXP, ToScores(CUDNN_POINTWISE_SUB, scores, most));
    const Descriptor sum = ToRowValue(CUDNN_REDUCE_TENSOR_ADD, e);
    const Descriptor log = RowValue();
    Pointwise(CUDNN_POINTWISE_LOG, CUDNN_DATA_FLOAT, sum, nullptr, log);
    Pointwise(CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, most, log, lse);
    // Operands of the matrix unit: p is rounded to the type of v, sums stay float32.
    const Descriptor p = ToScores(CUDNN_POINTWISE_DIV, e, sum, CUDNN_DATA_BFLOAT16);
    Multiply(p, v, o, query_rows_, nullptr, key_rows_);
  }

  // p = exp(scores - lse); ds = scale p (d_o v^T - delta), delta = d_o . o
  // dv = p^T d_o; dk = ds^T q; dq = ds k
  void Backward() {
    const Tensor k_rows = RowsTensor(kK, s_.kv_heads, s_.k, Offsets(kK));
    const Descriptor q = Rows(kQ, s_.heads, s_.q);
    const Descriptor k = Make(Transposed(k_rows));
    const Descriptor v = Make(Transposed(RowsTensor(kV, s_.kv_heads, s_.v, Offsets(kV))));
    const Descriptor o = Rows(kO, s_.heads, s_.o);
    const Descriptor d_o = Rows(kDo, s_.heads, s_.d_o);
    const Descriptor lse_offsets = Offsets(kLse);
    const Descriptor lse = RowValues(kLse, lse_offsets);
    const Descriptor delta = RowValues(kDelta, lse_offsets);
    const Descriptor dq_offsets = Offsets(kDq);
    const Descriptor scale = Scalar(kScale);

    const std::int64_t columns = s_.heads * s_.head_dim;
    const Descriptor products = Make({CUDNN_DATA_FLOAT,
                                      {s_.sequences, s_.heads, s_.length, s_.head_dim},
                                      {s_.length * columns, s_.length * s_.head_dim, columns, 1}});
    Pointwise(CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, d_o, o, products);
    Pointwise(CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, ToRowValue(CUDNN_REDUCE_TENSOR_ADD, products),
              Scalar(kOne), delta);

    const Descriptor scores = WithoutPadding(ScaledScores(q, k, scale));
    const Descriptor p =
        ToScores(CUDNN_POINTWISE_EXP, Causal(ToScores(CUDNN_POINTWISE_SUB, scores, lse)));
    KeyGradient(p, d_o, {kDv, kDvHeads, s_.dv});

    const Descriptor dp = Scores();
    Multiply(d_o, v, dp, query_rows_, key_rows_, nullptr);
    const Descriptor centred = ToScores(CUDNN_POINTWISE_SUB, dp, delta);
    const Descriptor unscaled = ToScores(CUDNN_POINTWISE_MUL, centred, p);
    const Descriptor ds = ToScores(CUDNN_POINTWISE_MUL, unscaled, scale);
    KeyGradient(ds, q, {kDk, kDkHeads, s_.dk});

    // An operand enters a graph once, and k is there transposed, as the scores need it. dq needs
    // its rows, which a reshape gives: the same memory, read by other strides.
    Tensor k_inside = k_rows;
    k_inside.id = 0;
    const Descriptor dq_sum =
        Make(RowsTensor(kDqSum, s_.heads, s_.dq, dq_offsets, CUDNN_DATA_FLOAT));
    Multiply(ds, Reshape(k, k_inside), dq_sum, query_rows_, nullptr, key_rows_);
    Pointwise(CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, dq_sum, nullptr,
              Make(RowsTensor(kDq, s_.heads, s_.dq, dq_offsets)));
  }

  struct KeyOperand {
    std::int64_t id, heads_id, stride;
  };
  // The gradient x^T rows of a key/value head, summed over the query heads that share it. Those are
  // first stored one by one; cuDNN multiplies the offsets by the size of the group.
  void KeyGradient(Descriptor x, Descriptor rows, const KeyOperand& to) {
    Tensor transposed = ScoresTensor(CUDNN_DATA_BFLOAT16);
    std::swap(transposed.strides[2], transposed.strides[3]);
    const Descriptor left = Reshape(x, transposed);
    const Descriptor offsets = Offsets(to.id);
    const Descriptor gradient = Make(RowsTensor(to.id, s_.kv_heads, to.stride, offsets));
    if (s_.group() == 1) {
      Multiply(left, rows, gradient, key_rows_, nullptr, query_rows_);
      return;
    }
    const Descriptor heads =
        Make(RowsTensor(to.heads_id, s_.heads, s_.group() * to.stride, offsets));
    Multiply(left, rows, heads, key_rows_, nullptr, query_rows_);
    Reduce(CUDNN_REDUCE_TENSOR_ADD, heads, gradient);
  }

  Descriptors& made_;
  const AttentionPlanShape& s_;
  std::vector<Descriptor> operations_;
  Descriptor query_rows_ = nullptr;
  Descriptor key_rows_ = nullptr;
  std::int64_t next_virtual_ = 1000;  // ids of tensors inside kernels
};

// The configurations of kernels that cuDNN proposes for a graph, the fastest first.
std::vector<Descriptor> Configurations(Descriptors& made, Descriptor graph, Descriptor device) {
  constexpr std::int64_t kMost = 4;
  const Descriptor choice = made.Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                                      {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph},
                                       {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A},
                                       {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device}});
  std::vector<Descriptor> found;
  for (std::int64_t i = 0; i < kMost; ++i) {
    found.push_back(made.MakeEmpty(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
  }
  std::int64_t count = 0;
  made.cudnn().Check("ask for kernels of attention",
                     made.cudnn().get(choice, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, &count, found.data()));
  // The library may know more configurations than there is room for.
  found.resize(std::min(count, kMost));
  return found;
}

}  // namespace

AttentionPlan::AttentionPlan(const Cudnn& cudnn, const AttentionTarget& target,
                             const AttentionPlanShape& shape)
    : made_(cudnn) {
  const Graph graph(made_, shape);
  Descriptor device = nullptr;
  Descriptor operations = nullptr;
  if (target.handle == nullptr) {
    const std::vector<char> json(target.device_json.begin(), target.device_json.end());
    device = made_.Make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
                        {{CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json}});
    operations = made_.Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                            {{CUDNN_ATTR_OPERATIONGRAPH_OPS, graph.operations()}});
  } else {
    operations = made_.Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                            {{CUDNN_ATTR_OPERATIONGRAPH_OPS, graph.operations()},
                             {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle}});
  }
  // The heuristics propose without trying: a configuration can still be refused, and the next one
  // taken. The error tells the last refusal.
  std::string problem = "no kernel";
  for (const Descriptor configuration : Configurations(made_, operations, device)) {
    try {
      const Attribute chosen(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      const Attribute where = target.handle == nullptr
                                  ? Attribute(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device)
                                  : Attribute(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
      plan_ = made_.Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, {chosen, where});
      break;
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  if (plan_ == nullptr) ThrowRuntime("cuda: cuDNN has no plan for attention: {}", problem);
  std::int64_t count = 0;
  cudnn.Check("read the workspace of a plan",
              cudnn.get(plan_, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                        &count, &workspace_));
}

void AttentionPlan::Run(cudnnHandle_t handle, const std::vector<std::int64_t>& ids,
                        const std::vector<void*>& data, void* workspace) const {
  // Made for each call, since operands have other addresses in each layer; the plan itself is made
  // once.
  Descriptors made(made_.cudnn());
  const Descriptor operands =
      made.Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids},
                 {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, std::ssize(data), data.data()},
                 {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1, &workspace}});
  made_.cudnn().Check("attention", made_.cudnn().execute(handle, plan_, operands));
}

}  // namespace qlora::cuda
