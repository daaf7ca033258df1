// One linear layer of QLoRA: a frozen 4-bit weight and a trained low-rank adapter,
//   y = x W^T + bias + s (drop(x) A^T) B^T,   s = lora_alpha / r, or lora_alpha / sqrt(r)
// (Dettmers et al., arXiv:2305.14314, equation 5; Hu et al., arXiv:2106.09685).
//
// Shapes: W (O, I) out and in features, x (N, I), y (N, O), A (R, I), B (O, R). x and y are float32
// or bfloat16; bias, A, B and their gradients are float32.
#ifndef QLORA_LINEAR_H_
#define QLORA_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "qlora/context.h"
#include "qlora/nf4.h"
#include "qlora/nf4_compat.h"
#include "qlora/tensor.h"

namespace qlora {

struct QLoraConfig {
  std::int64_t r = 16;      // rank, at least 1
  double lora_alpha = 32;   // > 0
  double lora_dropout = 0;  // in [0, 1)
  bool use_rslora = false;
  std::uint64_t seed = 42;  // of A and of the dropout masks
  // Operands of the products: kF32 or kBF16, with sums in float32. kI8: of x W^T alone, with sums
  // of 32 bits (docs/math/eight-bit.md), beside kBF16; not with weights that are decoded first.
  DType compute = DType::kF32;
  bool int8_backward = false;     // with kI8: dy W in 8 bits, too
  QuantizeOptions quantize = {};  // form of the weight that FromWeight makes
};

class QLoraLinear {
 public:
  // Quantizes w (O, I; F32, BF16 or F16). A is uniform in +-1/sqrt(I) (PEFT's Kaiming
  // initialisation), B is zero, so that the layer starts as x W^T + bias. bias: O values or none.
  // The context must outlive the layer. Errors (InvalidInput): as Quantize; a configuration
  // out of range, kI8 with row blocks or zero points, int8_backward without kI8; a bias of another length.
  static QLoraLinear FromWeight(Context& context, ConstMatrixView w, const QLoraConfig& config = {},
                                std::span<const float> bias = {});
  // The same around a weight that is quantized already, in any form. The layer computes with the
  // layout of bitsandbytes: scales that are not float32 or kDoubleBnb are held as float32 too, and
  // row blocks and zero points are decoded to float32 on the first call, and kept so. Errors: as
  // FromWeight.
  static QLoraLinear FromQuantized(Context& context, compat::Matrix weight,
                                   const QLoraConfig& config = {},
                                   std::span<const float> bias = {});
  // The same layer once more: adapter, gradients, and merged or not. The frozen weight is shared,
  // because nothing changes it.
  QLoraLinear Clone() const;
  ~QLoraLinear();
  QLoraLinear(QLoraLinear&& other) noexcept;
  QLoraLinear& operator=(QLoraLinear&& other) noexcept;

  std::int64_t in_features() const;
  std::int64_t out_features() const;
  const QLoraConfig& config() const;
  double scaling() const;                // s
  const compat::Matrix& weight() const;  // as it was given
  std::span<const float> bias() const;   // (O) or empty
  std::int64_t group_size() const;       // values of the weight that share a scale
  // One number per block of the weight, added to code * scale; empty without zero points.
  std::span<const float> zero_point() const;

  std::int64_t trainable_params() const;  // R (I + O)
  std::int64_t total_params() const;      // and of weight and bias
  std::size_t size_bytes() const;         // of weight, bias, A and B
  // Bytes by which the 4-bit weight is smaller than a float32 one.
  std::int64_t memory_saved_bytes() const;

  ConstMatrixView a() const;  // (R, I)
  ConstMatrixView b() const;  // (O, R)
  // Errors (InvalidInput): another shape, values that are not finite, while merged.
  void SetA(ConstMatrixView a);
  void SetB(ConstMatrixView b);

  // out (O, I; F32, BF16 or F16): the frozen weight; MergedWeight: W + s B A.
  void DequantizeWeight(MatrixView out) const;
  void MergedWeight(MatrixView out) const;

  // y (N, O) from x (N, I), any N. dropout_step: nothing drops no input (evaluation); a number
  // draws the mask that belongs to it, the same on every call.
  // Errors (InvalidInput): other shapes or dtypes.
  void Forward(ConstMatrixView x, MatrixView y, std::optional<std::uint64_t> dropout_step = {});
  // From dy (N, O) for the same x and dropout_step: adds to da() and db(); dx (N, I), unless it is
  // empty, becomes dy (W + drop' s B A). The frozen weight has no gradient.
  // Errors (InvalidInput): other shapes or dtypes; while merged.
  void Backward(ConstMatrixView x, ConstMatrixView dy, MatrixView dx,
                std::optional<std::uint64_t> dropout_step = {});
  MatrixView da();  // (R, I), zero until Backward
  MatrixView db();  // (O, R)
  void ZeroGradients();

  // Merged, the layer holds W + s B A in float32 and computes with that alone (no dropout); the
  // 4-bit weight is kept too, so that Unmerge restores every bit. Nothing is quantized again.
  // Errors (InvalidInput): merged already; not merged.
  void Merge();
  void Unmerge();
  bool merged() const;

  // One safetensors file: the weight in the form of bitsandbytes, bias, lora_A.weight and
  // lora_B.weight, and the configuration as text. Merged or not is not stored.
  // Errors (InvalidInput): Save: a form that bitsandbytes cannot hold (zero points, row blocks,
  // 16-bit or torchao scales); Load: anything that does not fit together.
  void Save(const std::filesystem::path& file) const;
  static QLoraLinear Load(Context& context, const std::filesystem::path& file);

 private:
  class Impl;
  explicit QLoraLinear(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qlora

#endif  // QLORA_LINEAR_H_
