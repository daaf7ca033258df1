// The sizes of passes, from which a layout of activations and the workspace of a backend are
// planned.
#ifndef QLORA_PASS_PASS_SHAPE_H_
#define QLORA_PASS_PASS_SHAPE_H_

#include <cstdint>
#include <vector>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "config/config.h"
#include "pass/activations.h"

namespace qlora {

// The largest operands of passes with at most `rows` rows and `head_rows` rows of logits. Backward
// passes have at most `gradient_rows` rows, in sequences of at most `gradient_length` tokens.
BackendLimits LimitsOf(const DecoderConfig& config, const Adapters& adapters, std::int64_t rows,
                       std::int64_t head_rows, std::int64_t gradient_rows = 0,
                       std::int64_t gradient_length = 0);

// The shape of training passes over `rows` rows, of which `supervised` are. recompute: of each
// layer. unfolded: Batch::unfolded_rows.
ActivationShape TrainShape(const DecoderConfig& config, std::int64_t rows, std::int64_t supervised,
                           const std::vector<Recompute>& recompute, std::int64_t unfolded = 0);

// The shape of training passes over `rows` rows whose logits are compared with those of the base.
ActivationShape AnchorShape(const DecoderConfig& config, std::int64_t rows,
                            const std::vector<Recompute>& recompute);

// The shape of passes without gradients over `rows` rows, each of which may be supervised.
ActivationShape EvalShape(const DecoderConfig& config, std::int64_t rows,
                          std::int64_t unfolded = 0);

}  // namespace qlora

#endif  // QLORA_PASS_PASS_SHAPE_H_
