// One layer of one pass: its blocks in their order, and the same in reverse.
//
// A layer mixes tokens, then features, then in some models adds a per-layer embedding. Each of
// these is a block with its own file in blocks/ (any_block.h lists them), which numbers its steps
// and has their mirror beneath. Blocks read the normalised residual stream and add to it. The
// gradient of the stream stays in one buffer, Activations::dx, to which every block adds its own.
//
// Each layer has a value for the activations that its backward pass computes again (Recompute in
// activations.h). The gradients are the same bits in each case.
#ifndef QLORA_PASS_LAYER_H_
#define QLORA_PASS_LAYER_H_

#include <optional>

#include "pass/blocks/any_block.h"
#include "pass/blocks/branch.h"
#include "pass/blocks/per_layer.h"
#include "pass/linear_group.h"

namespace qlora {

class Layer {
 public:
  explicit Layer(const LayerContext& context);
  // Blocks refer to the context in here.
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  void ForwardMixer();
  // x_out (N, D): the residual stream after the layer.
  void ForwardMlp(const MatrixView& x_out);
  // Computes again the activations of ForwardMlp that BackwardMlp reads.
  void RecomputeMlp();
  void BackwardMlp(LoraAdapter& trained);
  void BackwardMixer(LoraAdapter& trained);

 private:
  void Scale(const MatrixView& x);

  LayerContext context_;
  LayerActivations& a_;
  BlockInput in_;
  BlockInput mid_;
  LayerMixer mixer_;
  LayerMlp mlp_;
  std::optional<PerLayerBlock> per_layer_;
};

}  // namespace qlora

#endif  // QLORA_PASS_LAYER_H_
