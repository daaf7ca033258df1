// The buffers that a mixture of experts adds to a pass; experts.cc has its steps.
#ifndef QLORA_PASS_EXPERTS_H_
#define QLORA_PASS_EXPERTS_H_

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "model/config.h"
#include "pass/shared_expert.h"

namespace qlora {

// The activations of one layer's experts. S is N * k.
struct ExpertActivations {
  MatrixView router;        // (N, E) wide: logits; the backward pass leaves their gradient here
  MatrixView pair_weights;  // (N, k) wide
  MatrixView slot_weights;  // (1, S) wide: the same in the order of slots
  RoutingView routing;
  std::vector<std::int32_t> begin;  // (E + 1) routing.begin in host memory
  SharedExpertActivations shared;
};

// Scratch that all layers share.
struct ExpertBuffers {
  MatrixView slot;  // (S, D) act: rows that experts read and write
  SharedExpertBuffers shared;
  // Backward only.
  MatrixView d_slot;          // (S, D) act: gradient of `slot`
  MatrixView d_slot_weights;  // (1, S) wide
  MatrixView d_pair_weights;  // (N, k) wide
  MatrixView d_bias_weights;  // (1, S) wide: the part of biases of down in d_slot_weights, or empty
};

ExpertActivations LayoutExperts(Carver& carver, const DecoderConfig& config,
                                const Precision& precision, std::int64_t rows);
// Empty without experts.
ExpertBuffers LayoutExpertBuffers(Carver& carver, const DecoderConfig& config,
                                  const Precision& precision, std::int64_t rows, bool training);

}  // namespace qlora

#endif  // QLORA_PASS_EXPERTS_H_
