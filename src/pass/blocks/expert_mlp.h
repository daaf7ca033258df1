// The mixture of experts that Qwen3-MoE, Mixtral and gpt-oss have in place of the MLP. Steps 8 to
// 10 of a layer become 8a to 11; expert_mlp.cc has them, and their mirror beneath.
#ifndef QLORA_PASS_BLOCKS_EXPERT_MLP_H_
#define QLORA_PASS_BLOCKS_EXPERT_MLP_H_

#include <optional>

#include "backend/backend.h"
#include "pass/blocks/branch.h"
#include "pass/blocks/expert_slots.h"
#include "pass/blocks/layer_carver.h"
#include "pass/blocks/shared_expert.h"

namespace qlora {

struct LayerWeights;

class ExpertMlp {
 public:
  // In memory that all layers share. S is N * k.
  struct Scratch {
    MatrixView act;    // (S, F) act: act(gate) * up, then times the weight of the slot
    MatrixView d_act;  // (S, F) act: gradient of `act`; backward only
  };
  struct Activations {
    using Block = ExpertMlp;
    MatrixView gate;  // (S, F) act; the backward pass leaves its gradient here
    MatrixView up;    // (S, F) act; likewise
    ExpertSlots slots;
    SharedExpert::Activations shared;
    Scratch scratch;
  };
  static void Layout(LayerCarver& c, Activations& a);
  static void LayoutScratch(LayerCarver& c, Activations& a);

  ExpertMlp(const LayerContext& context, Activations& a);

  // x_out = in.x + experts(norm)
  void Forward(const BlockInput& in, const MatrixView& x_out);
  // Computes again what Backward reads.
  void Recompute(const BlockInput& in);
  void Backward(const BlockInput& in, LoraAdapter& trained);

 private:
  void Activate();
  // The mirror of steps 10 and 9, from dx, and of 8a, 8b.
  void DownBackward(LoraAdapter& trained);
  void RouterBackward();
  void GatesBackward(LoraAdapter& trained);

  const LayerContext& context_;
  const MoeConfig& moe_;
  const LayerWeights& w_;
  Activations& a_;
  const Scratch& s_;
  const ExpertBuffers& b_;
  std::optional<SharedExpert> shared_;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_EXPERT_MLP_H_
