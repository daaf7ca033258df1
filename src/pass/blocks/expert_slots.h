// The rows of experts, whether they stand in the place of the MLP or beside it. S is N * k.
//
// A pair is a token and one of its k experts. Pairs are put in the order of their experts, so that
// every expert multiplies a range of rows ("slots"):
//   tokens   0  1  2          pairs (token:expert)   0:2 0:0  1:0 1:1  2:2 2:1
//   slots    0:0 1:0 | 1:1 2:1 | 0:2 2:2             begin   0 2 4 6
#ifndef QLORA_PASS_BLOCKS_EXPERT_SLOTS_H_
#define QLORA_PASS_BLOCKS_EXPERT_SLOTS_H_

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "config/config.h"
#include "pass/blocks/layer_carver.h"
#include "pass/blocks/shared_expert.h"

namespace qlora {

// The activations of one layer's router.
struct ExpertSlots {
  MatrixView router;        // (N, E) wide: logits; the backward pass leaves their gradient here
  MatrixView pair_weights;  // (N, k) wide
  MatrixView slot_weights;  // (1, S) wide: the same in the order of slots
  RoutingView routing;
  // (E + 1) routing.begin in host memory; with several adapters, the slots of an expert are those
  // of each range of rows, one after the other: (E * ranges + 1).
  std::vector<std::int32_t> begin;
};
ExpertSlots LayoutSlots(LayerCarver& c, const MoeConfig& moe);

// Fills `begin`. The rows of an expert are the shape of its products, which the host gives: it
// waits for the routing once in each forward pass of a layer, instead of padding every expert to
// the most rows that it could have.
void FetchBegin(const LayerContext& context, ExpertSlots& slots);

// Scratch of a pass; empty without experts.
struct ExpertBuffers {
  MatrixView slot;  // (S, D) act: rows that experts read and write
  SharedExpert::Scratch shared;
  // Backward only.
  MatrixView d_slot;          // (S, D) act: gradient of `slot`
  MatrixView d_slot_weights;  // (1, S) wide
  MatrixView d_pair_weights;  // (N, k) wide
  MatrixView d_bias_weights;  // (1, S) wide: the part of biases of down in d_slot_weights, or empty
};
ExpertBuffers LayoutExpertBuffers(Carver& carver, const DecoderConfig& config,
                                  const Precision& precision, std::int64_t rows, bool training);

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_EXPERT_SLOTS_H_
