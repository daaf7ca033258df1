// The ops of the decoder: the one contract between the model and the devices. An op is a struct
// whose members are its operands with their shapes; those of layers with a state are in
// recurrent_ops.h. ops.cc and *_checks.cc check the shapes, reference/*.h defines the results as
// scalar loops over float, double or complex<double>, and the backends compute them (backend.h).
// tests/backend/op_cases.h compares each backend with the definition, op by op. docs/math derives
// the formulas; CONTRIBUTING.md says how to add an op.
//
// All operands are row-major matrices (rows, cols); a vector of n values is (1, n). Letters: N rows
// (tokens of all sequences of a batch, one after the other, never padded), D hidden_size, I/O in
// and out features of a linear, R LoRA rank, H heads, G key/value heads, K head_dim, F
// intermediate_size, V vocab_size, E experts, S slots of experts.
//
// Two element types run through a model (struct Precision): `activation` (float32 or bfloat16) for
// inputs and outputs of linears, and `wide` (float32) for the residual stream, statistics, LoRA
// matrices, gradients and logits. The reference backend also runs with both types float64 or
// complex128, which makes every formula checkable to rounding. An op accepts either type for each
// activation operand unless it says otherwise; arithmetic is at least float32 and rounds once, on
// store; matrix products take their operands in the compute type of the backend, or more precise,
// and accumulate in the wide type. Products with quantized weights may have operands of 8 bits
// (FrozenProducts); a result of one is a function of its row and the weight.
//
// Fields: inputs first, then outputs. An output is overwritten, except where its name ends in _acc:
// that one is added to; _inout is read and overwritten. Outputs do not overlap inputs unless the op
// allows it. All operands are in the memory of the backend (base/memory.h).
#ifndef QLORA_BACKEND_OPS_H_
#define QLORA_BACKEND_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "backend/expert_ops.h"
#include "backend/recurrent_ops.h"
#include "backend/weight.h"
#include "base/random.h"
#include "qlora/tensor.h"

namespace qlora {

// What products with quantized weights are computed in; all other products are computed in the type
// of their operands.
enum class FrozenProducts : std::uint8_t {
  kFloat,        // as all others
  kInt8Forward,  // Linear: with operands of 8 bits (docs/math/eight-bit.md)
  kInt8,         // dx of LinearBackward, too
};

struct Precision {
  DType activation = DType::kF32;
  DType wide = DType::kF32;
  FrozenProducts frozen = FrozenProducts::kFloat;
};

// A low-rank adapter; absent when a is empty. Wide type.
struct LoraView {
  ConstMatrixView a;      // (R, I)
  ConstMatrixView b;      // (O, R)
  float scale = 1;        // alpha / r, or alpha / sqrt(r)
  float dropout = 0;      // probability in [0, 1) that an element of the adapter's input is zeroed
  RandomKey dropout_key;  // element (n, i) is dropped when RandomUniform(key, n * I + i) < dropout
  // a and b once more in the type of the operands of products, so that few rows need not convert
  // them for each product, to the same bits; or empty. packed_lora.h has the order of packed_b.
  ConstMatrixView packed_a = {};  // (R, I)
  ConstMatrixView packed_b = {};  // (panels * R, kPackedRows)
};

struct LinearView {
  WeightView weight;     // (O, I)
  ConstMatrixView bias;  // (1, O) wide, or empty
  LoraView lora;
};

// An output replaces the values in its memory, or is added to them.
enum class Store : std::uint8_t { kSet, kAdd };

struct LinearOutput {
  MatrixView y;  // (N, O)
  MatrixView u;  // (N, R) wide: drop(x) A^T, kept for the backward pass; empty without an adapter
  // (N, O) of the type of y: with Store::kAdd, the matrix to which the result is added in place of
  // y; empty: y itself.
  ConstMatrixView base = {};
};

// Rows of an adapter of their own.
struct LoraRows {
  std::int64_t begin = 0;
  std::int64_t rows = 0;
  std::span<const LoraView> loras;  // of each linear
};

// The order in which a product sums over I. With kFew and kMany, the bits of a row depend on no
// other row, nor on how many there are; those of one differ from those of the other.
enum class SumOrder : std::uint8_t {
  kFastest,  // for this number of rows
  kFew,      // fast for few rows: at most kMostFewRows
  kMany,     // fast for many rows
};
inline constexpr std::int64_t kMostFewRows = 96;

struct LinearGradient {
  ConstMatrixView dy;  // (N, O)
  ConstMatrixView u;   // (N, R) wide, from the forward pass
  // (R, I) wide; empty without an adapter. Linears of a group that have one A have one da_acc.
  MatrixView da_acc;
  MatrixView db_acc;  // (O, R) wide
};

// cos and sin of position * frequency, (rows, K_rot / 2) each, wide. Dims i and i + K_rot / 2 of a
// head form a pair (Hugging Face "rotate_half"); interleaved: dims 2 i and 2 i + 1.
struct RopeTable {
  ConstMatrixView cos;
  ConstMatrixView sin;
  bool interleaved = false;
};

struct AttentionShape {
  std::int64_t heads = 0;     // H
  std::int64_t kv_heads = 0;  // G, divides H; query head h reads key/value head h / (H / G)
  std::int64_t head_dim = 0;  // K
  float scale = 0;            // multiplies q . k
  float softcap = 0;          // scores become softcap * tanh(score / softcap); 0: none
  std::int64_t window = 0;    // a query sees the last `window` keys, itself included; 0: all
};

// One sequence: query rows [q_begin, q_begin + q_rows) of q and key rows [kv_begin, kv_begin +
// kv_rows) of k and v. The queries are the last q_rows positions, so query i sees keys
// 0 ... kv_rows - q_rows + i of the span.
struct AttentionSpan {
  std::int64_t q_begin = 0;
  std::int64_t q_rows = 0;
  std::int64_t kv_begin = 0;
  std::int64_t kv_rows = 0;
};

enum class UpdateRule : std::uint8_t {
  kAdamW,  // Loshchilov and Hutter, arXiv:1711.05101, as torch.optim.AdamW
  kLion,   // Chen et al., arXiv:2302.06675
  kSgd,    // as torch.optim.SGD: beta1 is the momentum, and weight decay is part of the gradient
};

struct UpdateArgs {
  UpdateRule rule = UpdateRule::kAdamW;
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;    // decoupled, applied before the update (kAdamW, kLion)
  std::int64_t step = 1;      // 1 for the first update
  double gradient_scale = 1;  // gradients are multiplied by this first (clipping, normalisation)
};

// A moment of an optimizer, one value per parameter. Empty: there is none.
struct Moment {
  MatrixView values;  // (1, n) wide, or kU8: codes of quant/dynamic_map.h
  MatrixView scales;  // (1, ceil(n / 256)) float32, with codes only
};

class Checker;

namespace ops {

// y(N, D) = scale * table[ids].
struct Embed {
  static constexpr const char* kName = "Embed";
  IndexView ids;     // (N) in [0, V)
  WeightView table;  // (V, D)
  float scale = 1;
  MatrixView y;  // (N, D)
};

// d_table_acc[ids(n)] += scale * dy(n), in the order of n.
struct EmbedBackward {
  static constexpr const char* kName = "EmbedBackward";
  ConstMatrixView dy;  // (N, D) wide
  IndexView ids;       // (N) in [0, V)
  float scale = 1;
  MatrixView d_table_acc;  // (V, D) wide
};

// y = weight * x * rstd;  rstd = (mean over D of x^2 + epsilon)^-1/2.
struct RmsNorm {
  static constexpr const char* kName = "RmsNorm";
  ConstMatrixView x;       // (N, D)
  ConstMatrixView weight;  // (1, D) wide
  float epsilon = 0;
  MatrixView y;     // (N, D)
  MatrixView rstd;  // (1, N) wide
};

// dx = [dx +] rstd * w * dy - x * rstd^3 * mean(w * dy * x).  dx may be dy.
struct RmsNormBackward {
  static constexpr const char* kName = "RmsNormBackward";
  ConstMatrixView dy;      // (N, D)
  ConstMatrixView x;       // (N, D)
  ConstMatrixView weight;  // (1, D) wide
  ConstMatrixView rstd;    // (1, N) wide
  MatrixView dx;           // (N, D)
  Store store = Store::kSet;
};

// For each linear of a group that reads the same x:
//   u = drop(x) A^T;  y = [base +] x W^T + bias + scale * u B^T
// drop scales by 1 / (1 - dropout).
//
// With another order than kFastest there is no dropout, and rows may have adapters of their own.
struct Linear {
  static constexpr const char* kName = "Linear";
  std::span<const LinearView> linears;
  ConstMatrixView x;                      // (N, I)
  std::span<const LinearOutput> outputs;  // one of each linear
  Store store = Store::kSet;
  SumOrder order = SumOrder::kFastest;
  // Not with kFastest: in place of the adapters of the linears, or empty: all rows, in order. A
  // range uses the first columns of u.
  std::span<const LoraRows> ranges = {};
};

// For each linear: du = scale * dy B;  db_acc += scale * dy^T u;  da_acc += du^T drop(x);
// dx = [dx +] the sum over the group of dy W + drop'(du A).  Frozen weights have no gradient.
struct LinearBackward {
  static constexpr const char* kName = "LinearBackward";
  std::span<const LinearView> linears;
  ConstMatrixView x;  // (N, I)
  std::span<const LinearGradient> gradients;
  MatrixView dx;  // (N, I); empty: not computed (the first layer of the model)
  Store store = Store::kSet;
};

// Linear of every expert over the rows of its slots: linears and u hold `group` linears of expert
// 0, then of expert 1 ... outputs[i].y(S, O) has the rows of all experts, u(S, R) likewise, with
// the largest R: an expert of a smaller rank uses the first columns.
struct ExpertLinear {
  static constexpr const char* kName = "ExpertLinear";
  std::span<const LinearView> linears;    // (E * group)
  std::span<const std::int32_t> begin;    // (E + 1) in host memory, as of RouteExperts
  ConstMatrixView x;                      // (S, I)
  std::span<const LinearOutput> outputs;  // (group)
  SumOrder order = SumOrder::kFastest;    // as of Linear
};

// gradients(E * group) hold da_acc and db_acc of each linear; dy and u of gradient i < group are
// the rows of all experts; dy and u of later gradients are not read.
struct ExpertLinearBackward {
  static constexpr const char* kName = "ExpertLinearBackward";
  std::span<const LinearView> linears;  // (E * group)
  std::span<const std::int32_t> begin;  // (E + 1) in host memory, as of RouteExperts
  ConstMatrixView x;                    // (S, I)
  std::span<const LinearGradient> gradients;
  MatrixView dx;  // (S, I)
};

// Rotates the pairs of the first K_rot = 2 * cos.cols dims of every head of x, in place. inverse:
// by the negative angle, the backward pass.
struct Rope {
  static constexpr const char* kName = "Rope";
  IndexView positions;  // (N) rows of the table
  RopeTable table;
  std::int64_t heads = 0;
  bool inverse = false;
  MatrixView x_inout;  // (N, heads * K)
};

// Causal attention per span: o = softmax(scale * q k^T) v, lse = log sum exp of the scores.
struct Attention {
  static constexpr const char* kName = "Attention";
  AttentionShape shape;
  std::span<const AttentionSpan> spans;  // in host memory
  ConstMatrixView q;                     // (N, H*K)
  ConstMatrixView k;                     // (M, G*K)
  ConstMatrixView v;                     // (M, G*K)
  MatrixView o;                          // (N, H*K)
  MatrixView lse;                        // (N, H) wide
};

// Every q and k row belongs to exactly one span.
struct AttentionBackward {
  static constexpr const char* kName = "AttentionBackward";
  AttentionShape shape;
  std::span<const AttentionSpan> spans;  // in host memory
  ConstMatrixView d_o;                   // (N, H*K)
  ConstMatrixView q;                     // (N, H*K)
  ConstMatrixView k;                     // (M, G*K)
  ConstMatrixView v;                     // (M, G*K)
  ConstMatrixView o;                     // (N, H*K)
  ConstMatrixView lse;                   // (N, H) wide
  MatrixView dq;                         // (N, H*K)
  MatrixView dk;                         // (M, G*K)
  MatrixView dv;                         // (M, G*K)
};

// The attention of sinks: to the sum of each softmax adds exp(sink) of its head, which has no
// value.
//   f = sigmoid(lse - sink);  o *= f;  lse = log(exp(lse) + exp(sink))
// AttentionBackward of the new o and lse is the backward pass of both ops: sinks are not trained.
struct AttentionSinks {
  static constexpr const char* kName = "AttentionSinks";
  ConstMatrixView sinks;  // (1, H) wide
  MatrixView lse_inout;   // (N, H) wide
  MatrixView o_inout;     // (N, H*K)
};

// y = act(gate) * up.  y may be gate or up.  kClampedSwiglu (gpt-oss), with limit = 7:
//   g = min(gate, limit);  y = g sigmoid(1.702 g) (clamp(up, -limit, limit) + 1)
struct GatedActivation {
  static constexpr const char* kName = "GatedActivation";
  Activation activation = Activation::kSilu;
  ConstMatrixView gate;  // (N, F)
  ConstMatrixView up;    // (N, F)
  MatrixView y;          // (N, F)
};

// d_gate = dy * up * act'(gate);  d_up = dy * act(gate).  d_gate may be gate, d_up may be up or dy.
// kClampedSwiglu: 0 for values beyond the limit.
struct GatedActivationBackward {
  static constexpr const char* kName = "GatedActivationBackward";
  Activation activation = Activation::kSilu;
  ConstMatrixView dy;    // (N, F)
  ConstMatrixView gate;  // (N, F)
  ConstMatrixView up;    // (N, F)
  MatrixView d_gate;     // (N, F)
  MatrixView d_up;       // (N, F)
};

// p = softmax(cap(logits)) with cap(x) = softcap * tanh(x / softcap), 0: none.
// logprob = (1 - smoothing) log p[target] + smoothing (sum of log p) / V: label smoothing, 0: none.
// With row_scale the logits become the gradient of the sum of -row_scale * logprob; without it they
// become cap(logits).
struct CrossEntropy {
  static constexpr const char* kName = "CrossEntropy";
  IndexView targets;  // (N) in [0, V)
  float softcap = 0;
  ConstMatrixView row_scale;  // (1, N) wide: the factor of the loss of each row; or empty
  MatrixView logits_inout;    // (N, V) wide
  MatrixView logprob;         // (1, N) wide
  MatrixView hit = {};   // (1, N) wide or empty: 1 where no logit exceeds the target's, otherwise 0
  float smoothing = 0;   // in [0, 1)
  MatrixView mean = {};  // (1, N) wide or empty: of cap(logits) over V
  MatrixView entropy = {};  // (1, N) wide or empty: of softmax(cap(logits)), -sum p log p
};

// p = softmax(cap(logits)), q = softmax(cap(base)), cap as for CrossEntropy.
// kl = sum of q (log q - log p): how far p is from q; 0 where the logits are the same bits.
// base becomes q, and the logits become the gradient of scale times the sum of kl.
struct KlDivergence {
  static constexpr const char* kName = "KlDivergence";
  float softcap = 0;
  float scale = 1;
  MatrixView base_inout;    // (N, V) wide
  MatrixView logits_inout;  // (N, V) wide
  MatrixView kl;            // (1, N) wide
};

// sums_acc(1, k; float64) += the sum over n of each of the k rows of values(k, n; wide), its real
// part where it is complex, added in float64 in the order of n.
struct SumRows {
  static constexpr const char* kName = "SumRows";
  ConstMatrixView values;  // (k, n) wide
  MatrixView sums_acc;     // (1, k) float64
};

// y = x, of the same element type.
struct Copy {
  static constexpr const char* kName = "Copy";
  ConstMatrixView x;  // (n, D)
  MatrixView y;       // (n, D)
};

// All elements of y become 0; y may have a stride.
struct Zero {
  static constexpr const char* kName = "Zero";
  MatrixView y;  // (n, D)
};

// y_acc += x.
struct Add {
  static constexpr const char* kName = "Add";
  ConstMatrixView x;  // (n, D)
  MatrixView y_acc;   // (n, D)
};

// y(n, C) = scale(n) * x(n, C).  y may be x.
struct ScaleRows {
  static constexpr const char* kName = "ScaleRows";
  ConstMatrixView x;      // (n, C)
  ConstMatrixView scale;  // (1, n) wide
  MatrixView y;           // (n, C)
};

// dots(n) = the sum over C of x(n, C) * y(n, C).
struct RowDots {
  static constexpr const char* kName = "RowDots";
  ConstMatrixView x;  // (n, C)
  ConstMatrixView y;  // (n, C)
  MatrixView dots;    // (1, n) wide
};

// y_acc(n, d) += magnitude(n) * (2 u - 1), u = RandomUniform(key, n * D + d).
struct AddNoise {
  static constexpr const char* kName = "AddNoise";
  RandomKey key;
  ConstMatrixView magnitude;  // (1, N) wide
  MatrixView y_acc;           // (N, D)
};

// dw_acc += dy^T x: the gradient of a dense weight that is itself trained.
struct WeightGradient {
  static constexpr const char* kName = "WeightGradient";
  ConstMatrixView dy;  // (N, O)
  ConstMatrixView x;   // (N, I)
  MatrixView dw_acc;   // (O, I) wide
};

// For each row o of W + scale B A: norm = its length, inverse = 1 / length (0 for a row of zeros).
// Dropout plays no part.
struct RowNorms {
  static constexpr const char* kName = "RowNorms";
  WeightView weight;  // (O, I)
  LoraView lora;
  MatrixView norm;     // (1, O) wide; empty: not computed
  MatrixView inverse;  // (1, O) wide
};

// y = [y +] x * gain + bias.  y may be x.
struct ScaleColumns {
  static constexpr const char* kName = "ScaleColumns";
  ConstMatrixView x;     // (N, O)
  ConstMatrixView gain;  // (1, O) wide
  ConstMatrixView bias;  // (1, O) wide, or empty
  MatrixView y;          // (N, O)
  Store store = Store::kSet;
};

// dots(o) = the sum over the rows of x(n, o) * y(n, o).
struct ColumnDots {
  static constexpr const char* kName = "ColumnDots";
  ConstMatrixView x;  // (N, O)
  ConstMatrixView y;  // (N, O)
  MatrixView dots;    // (1, O) wide
};

// sums_acc(i) += the sum over the rows of x(n, i)^2, in float64 in the order of n.
struct ColumnSquares {
  static constexpr const char* kName = "ColumnSquares";
  ConstMatrixView x;    // (N, I)
  MatrixView sums_acc;  // (1, I) float64
};

// One optimizer update of contiguous ranges. kAdamW has both moments, kLion has m, kSgd has m or,
// with beta1 = 0, none. Moments in 8 bits are decoded, used at full precision for the update, and
// encoded again, block by block.
struct Update {
  static constexpr const char* kName = "Update";
  UpdateArgs args;
  ConstMatrixView gradient;  // (1, n) wide
  MatrixView param_inout;    // (1, n) wide
  Moment m_inout;
  Moment v_inout;
};

// sum = the sum of squares of a contiguous range, in float64 in a fixed order; of the real part
// where x is complex.
struct SumOfSquares {
  static constexpr const char* kName = "SumOfSquares";
  ConstMatrixView x;  // (1, n) wide
  MatrixView sum;     // (1, 1) float64
};

}  // namespace ops

// One call of any op. An op that is missing here cannot be run; one that a backend lacks does not
// compile.
using Op =
    std::variant<ops::Embed, ops::EmbedBackward, ops::RmsNorm, ops::RmsNormBackward, ops::Linear,
                 ops::LinearBackward, ops::ExpertLinear, ops::ExpertLinearBackward, ops::Rope,
                 ops::Attention, ops::AttentionBackward, ops::AttentionSinks, ops::GatedActivation,
                 ops::GatedActivationBackward, ops::CrossEntropy, ops::KlDivergence, ops::SumRows,
                 ops::Copy, ops::Zero, ops::Add, ops::GatherRows, ops::ScatterAddRows,
                 ops::RouteExperts, ops::RouteExpertsBackward, ops::ScaleRows, ops::RowDots,
                 ops::AddNoise, ops::WeightGradient, ops::RowNorms, ops::ScaleColumns,
                 ops::ColumnDots, ops::ColumnSquares, ops::Update, ops::SumOfSquares,
                 ops::CausalConv, ops::CausalConvBackward, ops::GatedDeltaRule,
                 ops::GatedDeltaRuleBackward, ops::GateRows, ops::GateRowsBackward>;

// Throws kRuntime when shapes, types or overlaps break the statement of the op: a bug of the
// caller.
void CheckOp(const Op& op);

}  // namespace qlora

#endif  // QLORA_BACKEND_OPS_H_
