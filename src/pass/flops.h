// The arithmetic that passes of a model need, with any kernels. docs/performance.md has the
// formula.
#ifndef QLORA_PASS_FLOPS_H_
#define QLORA_PASS_FLOPS_H_

#include <cstdint>
#include <functional>
#include <span>

#include "adapter/lora.h"
#include "backend/ops.h"
#include "config/config.h"
#include "model/weights.h"
#include "pass/activations.h"

namespace qlora {

// FLOPs by the operands of their products. compute_dtype int8 has 8 bits in products with quantized
// weights alone, and in their gradients with int8_backward.
struct Flops {
  double forward = 0;   // y of quantized weights, computed again where a layer recomputes
  double backward = 0;  // dx of quantized weights
  double others = 0;    // other weights, adapters, attention

  double sum() const { return forward + backward + others; }
  Flops& operator+=(const Flops& more);
};
Flops operator*(double factor, const Flops& flops);

// FLOP/s of each.
struct FlopRates {
  double forward = 0;
  double backward = 0;
  double others = 0;
};
double SecondsOf(const Flops& flops, const FlopRates& rates);

// The rates of the arithmetic limit. peak: FLOP/s of operands of this type.
FlopRates LimitRates(const Precision& precision, const std::function<double(DType)>& peak);

// FLOPs of one micro-step of `rows` tokens in sequences of `length`, of which `supervised` are
// trained on, including recomputation. recompute: (L) of each layer.
Flops StepFlops(const DecoderConfig& config, const LoraAdapter& adapter,
                const QuantizedShares& quantized, std::int64_t rows, std::int64_t supervised,
                std::int64_t length, std::span<const Recompute> recompute);

// FLOPs of a prefill of `rows` tokens, of which the last one has logits.
Flops PrefillFlops(const DecoderConfig& config, const QuantizedShares& quantized,
                   std::int64_t rows);

// Bytes of the linears of all layers that one token passes.
double LinearBytesOfToken(const DecoderConfig& config, const DecoderWeights& weights);

}  // namespace qlora

#endif  // QLORA_PASS_FLOPS_H_
