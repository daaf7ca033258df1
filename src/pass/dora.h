// DoRA (Liu et al., arXiv:2402.09353): the direction of W + scale B A and a trained length of each
// row. Derivation: docs/math/dora.md.
#ifndef QLORA_PASS_DORA_H_
#define QLORA_PASS_DORA_H_

#include <span>
#include <vector>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "base/arena.h"
#include "model/weights.h"

namespace qlora {

// Scratch of a pass; empty without DoRA.
struct DoraBuffers {
  MatrixView z;     // (N, largest O) wide: x (W + scale B A)^T of one linear
  MatrixView gain;  // (1, largest O) wide
  // Backward only.
  MatrixView dz;    // (N, largest O of a group) act: the gradients of a group, side by side
  MatrixView dots;  // (1, largest O) wide
};
// widest: O of the largest linear. widest_group: of the largest group; 0: no backward pass.
DoraBuffers LayoutDora(Carver& carver, std::int64_t widest, std::int64_t widest_group,
                       const Precision& precision, std::int64_t rows);

// y = [y +] gain z + bias,  z = x (W + scale B A)^T,  gain = magnitude / norm.
// views and loras: of the linears of a group.
void ForwardDora(Backend& backend, std::span<const LinearView> views,
                 std::span<const LoraLinear> loras, const ConstMatrixView& x,
                 std::span<const LinearOutput> outputs, Store store, SumOrder order,
                 DoraBuffers& buffers);

// d_magnitude += (the sum over the rows of dy z) / norm;  the dy of `gradients` becomes
// dz = gain dy. The norm counts as a constant. us receive drop(x) A^T again, the same bits.
void BackwardDora(Backend& backend, std::span<const LinearView> views,
                  std::span<const LoraLinear> loras, const ConstMatrixView& x,
                  std::span<const MatrixView> us, DoraBuffers& buffers,
                  std::vector<LinearGradient>& gradients);

// Computes the row lengths of W + scale B A again; needed after B or A changed. Does nothing
// without DoRA. Reserves its workspace, so no pass of the backend runs meanwhile.
void RefreshNorms(Backend& backend, const DecoderWeights& weights, LoraAdapter& adapter);
// Sets every magnitude to the row length of W, so that the adapter changes nothing.
void InitializeMagnitudes(Backend& backend, const DecoderWeights& weights, LoraAdapter& adapter);

}  // namespace qlora

#endif  // QLORA_PASS_DORA_H_
