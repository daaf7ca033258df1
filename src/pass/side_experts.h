// The experts that stand beside the MLP in Gemma 4's 26B-A4B, and their router:
//
//   f = RMSNorm(MLP(RMSNorm(x))) + RMSNorm(the sum over a token's experts of g Expert(RMSNorm(x)))
//
// Each RMSNorm has its own weight. The router reads RMSNorm(x) of a fourth weight; g is the softmax
// over the chosen experts' logits, times a number of each expert. An expert is one linear for gate
// and up, and one for down. side_experts.cc has the steps, and the steps backward beneath them. The
// buffers of routing are those of experts in the place of the MLP (experts.h).
#ifndef QLORA_PASS_SIDE_EXPERTS_H_
#define QLORA_PASS_SIDE_EXPERTS_H_

#include <cstdint>

#include "backend/backend.h"
#include "base/arena.h"
#include "model/config.h"

namespace qlora {

// Of one layer; all empty without such experts. S is N * k, M the width of an expert.
struct SideActivations {
  MatrixView dense;        // (N, D) act: output of the MLP before its norm
  MatrixView dense_rstd;   // (1, N) wide
  MatrixView router_rstd;  // (1, N) wide
  MatrixView pair_scales;  // (N, k) wide: the number of the expert of each pair
  MatrixView rstd;         // (1, N) wide: of the norm before the experts
  MatrixView gate_up;      // (S, 2M) act; the backward pass leaves its gradient here
  MatrixView sum;          // (N, D) wide: output of the experts before its norm
  MatrixView sum_rstd;     // (1, N) wide
};

// Scratch of one layer, in memory that all layers share.
struct SideScratch {
  MatrixView pairs;  // (N, k) wide: weights of pairs times their scales
  MatrixView act;    // (S, M) act: weight * act(gate) * up
  // Backward only.
  MatrixView d_dense;  // (N, D) act
  MatrixView d_sum;    // (N, D) act
  MatrixView d_act;    // (S, M) act
};

SideActivations LayoutSide(Carver& carver, const DecoderConfig& config, const Precision& precision,
                           std::int64_t rows);
SideScratch LayoutSideScratch(Carver& carver, const DecoderConfig& config,
                              const Precision& precision, std::int64_t rows, bool training);

}  // namespace qlora

#endif  // QLORA_PASS_SIDE_EXPERTS_H_
