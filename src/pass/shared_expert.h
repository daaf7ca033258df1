// The buffers that an expert of all tokens (Qwen3.5) adds to a pass; shared_expert.cc has its
// steps. F: its width.
#ifndef QLORA_PASS_SHARED_EXPERT_H_
#define QLORA_PASS_SHARED_EXPERT_H_

#include <cstdint>

#include "backend/backend.h"
#include "base/arena.h"
#include "model/config.h"

namespace qlora {

// The activations of one layer. The backward pass leaves the gradient of each in its place.
struct SharedExpertActivations {
  MatrixView gate;    // (N, F) act
  MatrixView up;      // (N, F) act
  MatrixView weight;  // (N, 1) act: its sigmoid weights the expert
};

// Scratch that all layers share.
struct SharedExpertBuffers {
  MatrixView act;    // (N, F) act: act(gate) * up
  MatrixView gated;  // (N, F) act: sigmoid(weight) * act
  // Backward only.
  MatrixView d_gated;  // (N, F) act
};

// Empty without such an expert.
SharedExpertActivations LayoutSharedExpert(Carver& carver, const DecoderConfig& config,
                                           const Precision& precision, std::int64_t rows);
SharedExpertBuffers LayoutSharedExpertBuffers(Carver& carver, const DecoderConfig& config,
                                              const Precision& precision, std::int64_t rows,
                                              bool training);

}  // namespace qlora

#endif  // QLORA_PASS_SHARED_EXPERT_H_
