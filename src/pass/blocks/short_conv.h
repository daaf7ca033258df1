// The short convolution between two gates that LFM2 has in the place of attention in most layers.
// Steps 2 to 6 of a layer; short_conv.cc has them, and their mirror beneath.
#ifndef QLORA_PASS_BLOCKS_SHORT_CONV_H_
#define QLORA_PASS_BLOCKS_SHORT_CONV_H_

#include "pass/blocks/branch.h"
#include "pass/blocks/layer_carver.h"

namespace qlora {

struct LayerWeights;

class ShortConvMixer {
 public:
  // In memory that all layers share.
  struct Scratch {
    MatrixView bx;     // (N, D) act: b * x
    MatrixView conv;   // (N, D) act: of bx; the backward pass leaves the gradient of bx here
    MatrixView gated;  // (N, D) act: c * conv, the input of the last linear
    // The same of M unfolded rows; empty without prefixes.
    MatrixView all_bx, all_conv, d_all_conv;  // (M, D) act
    // Backward only.
    MatrixView d_gated;  // (N, D) act; then the gradient of conv
    MatrixView d_in;     // (N, 3*D) act
  };
  struct Activations {
    using Block = ShortConvMixer;
    MatrixView in;  // (N, 3*D) act: the gates b and c, and x
    BranchActivations out;
    Scratch scratch;
  };
  struct State {
    MatrixView window;  // (slots * (taps - 1), D) act: the last inputs of the convolution
  };
  static constexpr std::int64_t kPromptPart = 1;
  static void Layout(LayerCarver& c, Activations& a);
  static void LayoutScratch(LayerCarver& c, Activations& a);
  static State LayoutState(LayerCarver& c, std::int64_t slots);

  ShortConvMixer(const LayerContext& context, Activations& a);

  // x_out = in.x + mixer(norm)
  void Forward(const BlockInput& in, const MatrixView& x_out);
  void Backward(const BlockInput& in, LoraAdapter& trained);

 private:
  // Steps 3 to 5.
  void Convolve();

  const LayerContext& context_;
  const LayerWeights& w_;
  Activations& a_;
  const Scratch& s_;
  Branch out_;
  State state_;  // empty without a pool
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_SHORT_CONV_H_
