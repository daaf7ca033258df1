// The op contract: everything the decoder computes, once per op, for every backend.
//
// All operands are row-major matrices (rows, cols); a vector of n values is (1, n). Letters: N rows
// (tokens of all sequences of a batch, one after the other, never padded), D hidden_size, I/O in
// and out features of a linear, R LoRA rank, H heads, G key/value heads, K head_dim, F
// intermediate_size, V vocab_size.
//
// Two element types run through a model (struct Precision): `activation` (float32 or bfloat16) for
// what linears read and write, and `wide` (float32) for the residual stream, statistics, LoRA
// matrices, gradients and logits. The reference backend also runs with both types float64 or
// complex128, which makes every formula checkable to rounding. An op accepts either type for each
// activation operand unless it says otherwise; arithmetic is at least float32 and rounds once, on
// store; matrix products take their operands in the compute type of the backend, or more precise,
// and accumulate in the wide type.
//
// Arguments: inputs first, then outputs. An output is overwritten, except where its name ends in
// _acc: that one is added to. Outputs do not overlap inputs unless the op allows it. The public
// functions check shapes once for all backends (errors in them are bugs of the caller: kRuntime).
// No op allocates: call Reserve first. Results do not depend on the number of threads.
#ifndef QLORA_BACKEND_BACKEND_H_
#define QLORA_BACKEND_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/random.h"
#include "qlora/context.h"
#include "qlora/nf4.h"
#include "qlora/tensor.h"

namespace qlora {

struct Precision {
  DType activation = DType::kF32;
  DType wide = DType::kF32;
};

// A frozen weight (O, I): dense float32/float16/bfloat16 (or the wide type), or 4-bit.
struct WeightView {
  ConstMatrixView dense;
  QuantizedView quantized;  // read when dense is empty
  // `quantized` once more, as Prepack of the backend in use lays it out; or null. Linear then reads
  // the packed values and the scale of each block here; all else, and other ops, in `quantized`.
  const std::byte* prepacked = nullptr;

  bool is_dense() const { return !dense.empty(); }
  std::int64_t rows() const { return is_dense() ? dense.rows : quantized.rows; }
  std::int64_t cols() const { return is_dense() ? dense.cols : quantized.cols; }
};

// A low-rank adapter; absent when a is empty. Wide type.
struct LoraView {
  ConstMatrixView a;      // (R, I)
  ConstMatrixView b;      // (O, R)
  float scale = 1;        // alpha / r, or alpha / sqrt(r)
  float dropout = 0;      // probability in [0, 1) that an element of the adapter's input is zeroed
  RandomKey dropout_key;  // element (n, i) is dropped when RandomUniform(key, n * I + i) < dropout
};

struct LinearView {
  WeightView weight;     // (O, I)
  ConstMatrixView bias;  // (1, O) wide, or empty
  LoraView lora;
};

// Whether an output replaces what was there or is added to it.
enum class Store : std::uint8_t { kSet, kAdd };

struct LinearOutput {
  MatrixView y;  // (N, O)
  MatrixView u;  // (N, R) wide: drop(x) A^T, kept for the backward pass; empty without an adapter
};

struct LinearGradient {
  ConstMatrixView dy;  // (N, O)
  ConstMatrixView u;   // (N, R) wide, from the forward pass
  MatrixView da_acc;   // (R, I) wide; empty without an adapter
  MatrixView db_acc;   // (O, R) wide
};

enum class Activation : std::uint8_t { kSilu, kGeluTanh };

// cos and sin of position * frequency, (positions, K_rot / 2) each, wide.
struct RopeTable {
  ConstMatrixView cos;
  ConstMatrixView sin;
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
  MatrixView values;  // (1, n) wide, or kU8: codes of quant/moment_code.h
  MatrixView scales;  // (1, ceil(n / 256)) float32, with codes only
};

// The largest operands that ops will be called with, from which a backend plans its workspace.
struct BackendLimits {
  std::int64_t rows = 0;        // N
  std::int64_t features = 0;    // I or O of any linear of the blocks, summed over a group
  std::int64_t vocab_rows = 0;  // rows of one call of the output head
  std::int64_t vocab = 0;       // V
  std::int64_t lora_rank = 0;   // R, summed over a group
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // G
  std::int64_t head_dim = 0;    // K
  // Of backward passes; 0: there is none.
  std::int64_t gradient_rows = 0;    // N
  std::int64_t gradient_length = 0;  // tokens of the longest sequence
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Bytes of workspace that Reserve will take for these limits.
  virtual std::size_t WorkspaceBytes(const BackendLimits& limits) const = 0;
  virtual void Reserve(const BackendLimits& limits) = 0;

  // A copy of the values and scales of a 4-bit weight in the order in which Linear reads them
  // fastest, above all when x has few rows. 0: this backend has no better order than that of `q`.
  virtual std::size_t PrepackedBytes(const QuantizedView& q) const;
  // out: room for PrepackedBytes(q) bytes, which is not 0, aligned to 64.
  virtual void Prepack(const QuantizedView& q, std::byte* out);

  // y(N, D) = scale * table(V, D)[ids(N)].   table: float32, float16 or bfloat16.
  void Embed(std::span<const std::int32_t> ids, ConstMatrixView table, float scale, MatrixView y);

  // y(N, D) = weight(1, D) * x * rstd;  rstd(1, N) = (mean over D of x^2 + epsilon)^-1/2, wide.
  void RmsNorm(ConstMatrixView x, ConstMatrixView weight, float epsilon, MatrixView y,
               MatrixView rstd);
  // dx(N, D) = rstd * w * dy - x * rstd^3 * mean(w * dy * x).  dx may be dy.
  void RmsNormBackward(ConstMatrixView dy, ConstMatrixView x, ConstMatrixView weight,
                       ConstMatrixView rstd, MatrixView dx, Store store);

  // For each linear of a group that reads the same x(N, I):
  //   u = drop(x) A^T;  y = x W^T + bias + scale * u B^T        (drop scales by 1 / (1 - dropout))
  void Linear(std::span<const LinearView> linears, ConstMatrixView x,
              std::span<const LinearOutput> outputs, Store store);
  // For each linear: du = scale * dy B;  db_acc += scale * dy^T u;  da_acc += du^T drop(x);
  // dx = sum over the group of dy W + drop'(du A).  Frozen weights and biases have no gradient.
  // dx empty: not wanted (the first layer of the model).
  void LinearBackward(std::span<const LinearView> linears, ConstMatrixView x,
                      std::span<const LinearGradient> gradients, MatrixView dx, Store store);

  // Rotates the first K_rot = 2 * cos.cols dims of every head of x(N, heads * K), in place; dims i
  // and i + K_rot / 2 form a pair (Hugging Face "rotate_half"). inverse: by the negative angle,
  // which is the backward pass.
  void Rope(std::span<const std::int32_t> positions, const RopeTable& table, std::int64_t heads,
            bool inverse, MatrixView x_inout);

  // Causal attention per span: o(N, H*K) = softmax(scale * q k^T) v, lse(N, H) wide = log sum exp
  // of the scores. q(N, H*K); k, v(M, G*K).
  void Attention(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                 ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, MatrixView o,
                 MatrixView lse);
  // Every q and k row must belong to exactly one span.
  void AttentionBackward(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                         ConstMatrixView d_o, ConstMatrixView q, ConstMatrixView k,
                         ConstMatrixView v, ConstMatrixView o, ConstMatrixView lse, MatrixView dq,
                         MatrixView dk, MatrixView dv);

  // y(N, F) = act(gate) * up.  y may be gate or up.
  void GatedActivation(Activation activation, ConstMatrixView gate, ConstMatrixView up,
                       MatrixView y);
  // d_gate = dy * up * act'(gate);  d_up = dy * act(gate).  d_gate may be gate, d_up may be up or
  // dy.
  void GatedActivationBackward(Activation activation, ConstMatrixView dy, ConstMatrixView gate,
                               ConstMatrixView up, MatrixView d_gate, MatrixView d_up);

  // row_loss(1, N) = -log softmax(cap(logits))[target], wide; then logits(N, V), wide, is replaced
  // by gradient_scale * d(sum of row_loss)/d(logits), unless gradient_scale is 0: then it keeps
  // its (capped) values. Targets in [0, V). cap: softcap * tanh(x / softcap), 0: none.
  // row_hit(1, N), wide, or empty: 1 where no logit is larger than the target's, else 0.
  void CrossEntropy(std::span<const std::int32_t> targets, float softcap, double gradient_scale,
                    MatrixView logits_inout, MatrixView row_loss, MatrixView row_hit = {});

  // y_acc += x.
  void Add(ConstMatrixView x, MatrixView y_acc);
  // y(n, D) = x[rows(n)].
  void GatherRows(ConstMatrixView x, std::span<const std::int32_t> rows, MatrixView y);
  // y_acc[rows(n)] += x(n, D); rows are distinct.
  void ScatterAddRows(ConstMatrixView x, std::span<const std::int32_t> rows, MatrixView y_acc);

  // Mixture of experts. p = softmax(logits(N, E), wide); experts(N * k) are the k largest of each
  // row in falling order (of equal ones the lower index first), weights(N, k), wide, their p,
  // divided by its sum over the k when `normalize`.
  void SelectExperts(ConstMatrixView logits, bool normalize, std::span<std::int32_t> experts,
                     MatrixView weights);
  // logits(N, E) become their gradient. experts and weights are those of SelectExperts.
  void SelectExpertsBackward(ConstMatrixView d_weights, std::span<const std::int32_t> experts,
                             ConstMatrixView weights, bool normalize, MatrixView logits_inout);
  // y(n, C) = scale(1, n) * x, one factor a row, wide.  y may be x.
  void ScaleRows(ConstMatrixView x, ConstMatrixView scale, MatrixView y);
  // dots(1, n), wide = sum over C of x(n, C) * y(n, C).
  void RowDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots);

  // y(N, D) += magnitude(1, N; wide) * (2 u - 1), u = RandomUniform(key, n * D + d).
  void AddNoise(RandomKey key, ConstMatrixView magnitude, MatrixView y_acc);

  // dw_acc(O, I) wide += dy(N, O)^T x(N, I): the gradient of a dense weight that is itself trained.
  void WeightGradient(ConstMatrixView dy, ConstMatrixView x, MatrixView dw_acc);

  // For each row o of W + scale B A: norm(1, O) = its length, inverse(1, O) = 1 / length (0 for a
  // row of zeros); wide. Dropout plays no part. norm empty: not wanted.
  void RowNorms(const WeightView& weight, const LoraView& lora, MatrixView norm,
                MatrixView inverse);
  // y(N, O) = [y +] x * gain + bias;  gain, bias(1, O) wide; bias may be empty. y may be x.
  void ScaleColumns(ConstMatrixView x, ConstMatrixView gain, ConstMatrixView bias, MatrixView y,
                    Store store);
  // dots(1, O) wide = sum over the rows of x * y.
  void ColumnDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots);

  // One optimizer update of contiguous (1, n) ranges, wide. kAdamW has both moments, kLion has m,
  // kSgd has m or, with beta1 = 0, none. Moments in 8 bits are decoded, used at full precision for
  // the update, and encoded again, block by block.
  void Update(const UpdateArgs& args, ConstMatrixView gradient, MatrixView param_inout,
              const Moment& m_inout, const Moment& v_inout);
  // Sum of squares of a contiguous (1, n) range, accumulated in float64 in a fixed order.
  double SumOfSquares(ConstMatrixView x);

 private:
  virtual void DoEmbed(std::span<const std::int32_t> ids, ConstMatrixView table, float scale,
                       MatrixView y) = 0;
  virtual void DoRmsNorm(ConstMatrixView x, ConstMatrixView weight, float epsilon, MatrixView y,
                         MatrixView rstd) = 0;
  virtual void DoRmsNormBackward(ConstMatrixView dy, ConstMatrixView x, ConstMatrixView weight,
                                 ConstMatrixView rstd, MatrixView dx, Store store) = 0;
  virtual void DoLinear(std::span<const LinearView> linears, ConstMatrixView x,
                        std::span<const LinearOutput> outputs, Store store) = 0;
  virtual void DoLinearBackward(std::span<const LinearView> linears, ConstMatrixView x,
                                std::span<const LinearGradient> gradients, MatrixView dx,
                                Store store) = 0;
  virtual void DoRope(std::span<const std::int32_t> positions, const RopeTable& table,
                      std::int64_t heads, bool inverse, MatrixView x_inout) = 0;
  virtual void DoAttention(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                           ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, MatrixView o,
                           MatrixView lse) = 0;
  virtual void DoAttentionBackward(const AttentionShape& shape,
                                   std::span<const AttentionSpan> spans, ConstMatrixView d_o,
                                   ConstMatrixView q, ConstMatrixView k, ConstMatrixView v,
                                   ConstMatrixView o, ConstMatrixView lse, MatrixView dq,
                                   MatrixView dk, MatrixView dv) = 0;
  virtual void DoGatedActivation(Activation activation, ConstMatrixView gate, ConstMatrixView up,
                                 MatrixView y) = 0;
  virtual void DoGatedActivationBackward(Activation activation, ConstMatrixView dy,
                                         ConstMatrixView gate, ConstMatrixView up,
                                         MatrixView d_gate, MatrixView d_up) = 0;
  virtual void DoCrossEntropy(std::span<const std::int32_t> targets, float softcap,
                              double gradient_scale, MatrixView logits_inout, MatrixView row_loss,
                              MatrixView row_hit) = 0;
  virtual void DoAdd(ConstMatrixView x, MatrixView y_acc) = 0;
  virtual void DoGatherRows(ConstMatrixView x, std::span<const std::int32_t> rows,
                            MatrixView y) = 0;
  virtual void DoScatterAddRows(ConstMatrixView x, std::span<const std::int32_t> rows,
                                MatrixView y_acc) = 0;
  virtual void DoSelectExperts(ConstMatrixView logits, bool normalize,
                               std::span<std::int32_t> experts, MatrixView weights) = 0;
  virtual void DoSelectExpertsBackward(ConstMatrixView d_weights,
                                       std::span<const std::int32_t> experts,
                                       ConstMatrixView weights, bool normalize,
                                       MatrixView logits_inout) = 0;
  virtual void DoScaleRows(ConstMatrixView x, ConstMatrixView scale, MatrixView y) = 0;
  virtual void DoRowDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) = 0;
  virtual void DoAddNoise(RandomKey key, ConstMatrixView magnitude, MatrixView y_acc) = 0;
  virtual void DoWeightGradient(ConstMatrixView dy, ConstMatrixView x, MatrixView dw_acc) = 0;
  virtual void DoRowNorms(const WeightView& weight, const LoraView& lora, MatrixView norm,
                          MatrixView inverse) = 0;
  virtual void DoScaleColumns(ConstMatrixView x, ConstMatrixView gain, ConstMatrixView bias,
                              MatrixView y, Store store) = 0;
  virtual void DoColumnDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) = 0;
  virtual void DoUpdate(const UpdateArgs& args, ConstMatrixView gradient, MatrixView param_inout,
                        const Moment& m_inout, const Moment& v_inout) = 0;
  virtual double DoSumOfSquares(ConstMatrixView x) = 0;
};

// compute: the operand type of matrix products, kF32 or kBF16 (which needs no special hardware to
// be correct, only to be fast). The context must outlive the backend.
std::unique_ptr<Backend> MakeCpuBackend(Context& context, DType compute);

// The definition of every op as plain scalar loops; operands may be kF32, kF64 or kC128 throughout.
std::unique_ptr<Backend> MakeReferenceBackend();

}  // namespace qlora

#endif  // QLORA_BACKEND_BACKEND_H_
