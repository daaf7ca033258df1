// The second embedding of Gemma 4's E models, which has a part of P values for each layer:
//
//   p = (RMSNorm(e Wm^T D^-1/2) + T[id] sqrt(P)) 2^-1/2      of each of the L parts, once in a pass
//   x = x + RMSNorm((act(x Wg^T) * p_l) Wo^T)                behind the MLP of layer l
//
// e is the embedding as it enters layer 0, T a table (V', L*P) that stays in the file. per_layer.cc
// has the steps, and the steps backward beneath them. The gradient of p is needed where Wm has an
// adapter or the embedding is trained.
#ifndef QLORA_PASS_BLOCKS_PER_LAYER_H_
#define QLORA_PASS_BLOCKS_PER_LAYER_H_

#include <cstdint>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "base/arena.h"
#include "config/config.h"
#include "pass/blocks/branch.h"
#include "pass/blocks/layer_carver.h"
#include "pass/input_observer.h"

namespace qlora {

class Decoder;
struct Activations;
struct PassInputs;

// What all layers share; all empty without per-layer embeddings.
struct PerLayerBuffers {
  MatrixView inputs;     // (N, L*P) act: p
  MatrixView projected;  // (N, L*P) act: e Wm^T; scratch where the gradient of p is not needed
  MatrixView rstd;       // (1, N*L) wide
  MatrixView d_inputs;   // (N, L*P) act: gradient of p; empty where it is not needed
};

PerLayerBuffers LayoutPerLayer(Carver& carver, const DecoderConfig& config,
                               const Precision& precision, std::int64_t rows, bool needs_gradient);

// Computes p from the input of layer 0.
void EmbedPerLayer(const Decoder& decoder, const PassInputs& inputs, const InputObserver* observer,
                   Activations& activations);
// From the gradient of p, once all layers have run backward: adds the gradient of the adapter of
// Wm, and where `wanted`, that of e to activations.dx.
void EmbedPerLayerBackward(const Decoder& decoder, const PassInputs& inputs, bool wanted,
                           Activations& activations, LoraAdapter& trained);

// Steps 11 to 13 of a layer, behind its MLP.
class PerLayerBlock {
 public:
  struct Scratch {
    MatrixView z;    // (N, P) act: act(gate) * p_l
    MatrixView d_z;  // (N, P) act; backward only
  };
  struct Activations {
    MatrixView x;     // (N, D) wide: the residual stream behind the MLP
    MatrixView gate;  // (N, P) act: x Wg^T; the backward pass leaves its gradient here
    BranchActivations out;
    Scratch scratch;
  };
  // Both leave everything empty in models without, x in all: it is the residual stream.
  static void Layout(LayerCarver& c, Activations& a);
  static void LayoutScratch(LayerCarver& c, Activations& a);

  // context must outlive this.
  PerLayerBlock(const LayerContext& context, Activations& a);

  // Where the MLP leaves the residual stream.
  const MatrixView& x() const { return a_.x; }
  // x_out = x + the per-layer embedding
  void Forward(const MatrixView& x_out);
  // Computes again what Backward reads, from x.
  void Recompute();
  void Backward(LoraAdapter& trained);

 private:
  // The columns of this layer.
  MatrixView Part(const MatrixView& all) const;
  void Project();
  void Activate();

  const LayerContext& context_;
  Activations& a_;
  const Scratch& s_;
  BlockInput in_;
  Branch out_;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_PER_LAYER_H_
