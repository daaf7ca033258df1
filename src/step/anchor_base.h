// What the base, the weights without the adapter, computes of the anchor of a window.
#ifndef QLORA_STEP_ANCHOR_BASE_H_
#define QLORA_STEP_ANCHOR_BASE_H_

#include "base/arena.h"
#include "dist/rank_place.h"
#include "step/step.h"

namespace qlora {

struct AnchorBase {
  Arena memory = {};
  ConstMatrixView x_out = {};  // (N, D) wide; empty unless this is the last stage of the anchor
};

// A pass without gradients before the first pass of the window.
AnchorBase ForwardBase(const StepModel& model, const RankPlace& place, const StepBatch& batch);
// The bytes of AnchorBase for an anchor of so many rows.
std::size_t BytesOfAnchorBase(const DecoderConfig& config, const Precision& precision,
                              std::int64_t rows);

}  // namespace qlora

#endif  // QLORA_STEP_ANCHOR_BASE_H_
