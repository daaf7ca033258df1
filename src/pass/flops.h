// The arithmetic that passes of a model need, with any kernels. docs/performance.md has the
// formula.
#ifndef QLORA_PASS_FLOPS_H_
#define QLORA_PASS_FLOPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "adapter/lora.h"
#include "config/config.h"
#include "model/weights.h"
#include "pass/activations.h"

namespace qlora {

// FLOPs of one micro-step of `rows` tokens in sequences of `length`, of which `supervised` are
// trained on, including recomputation. recompute: (L) of each layer.
double StepFlops(const DecoderConfig& config, const LoraAdapter& adapter, std::int64_t rows,
                 std::int64_t supervised, std::int64_t length,
                 std::span<const Recompute> recompute);

// FLOPs of a prefill of `rows` tokens, of which the last one has logits.
double PrefillFlops(const DecoderConfig& config, std::int64_t rows);

// Bytes of the linears of all layers that one token passes.
double LinearBytesOfToken(const DecoderConfig& config, const DecoderWeights& weights);

}  // namespace qlora

#endif  // QLORA_PASS_FLOPS_H_
