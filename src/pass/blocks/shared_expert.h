// The expert that all tokens have beside those that are chosen for each (Qwen3.5): steps 8c and 11
// of ExpertMlp, and their mirror. F: its width.
#ifndef QLORA_PASS_BLOCKS_SHARED_EXPERT_H_
#define QLORA_PASS_BLOCKS_SHARED_EXPERT_H_

#include "backend/backend.h"
#include "base/arena.h"
#include "pass/blocks/layer_carver.h"

namespace qlora {

class LoraAdapter;
struct LayerContext;

class SharedExpert {
 public:
  // The backward pass leaves the gradient of each in its place.
  struct Activations {
    MatrixView gate;    // (N, F) act
    MatrixView up;      // (N, F) act
    MatrixView weight;  // (N, 1) act: its sigmoid weights the expert
  };
  // Of a pass.
  struct Scratch {
    MatrixView act;      // (N, F) act: act(gate) * up
    MatrixView gated;    // (N, F) act: sigmoid(weight) * act
    MatrixView d_gated;  // (N, F) act; backward only
  };
  // Both are empty without such an expert.
  static Activations Layout(LayerCarver& c);
  static Scratch LayoutScratch(Carver& carver, const DecoderConfig& config,
                               const Precision& precision, std::int64_t rows, bool training);

  // context must outlive this.
  SharedExpert(const LayerContext& context, const Activations& a, const Scratch& s)
      : context_(context), a_(a), s_(s) {}

  // gate, up, weight = norm W^T + LoRA
  void Project();
  // x_out += (sigmoid(weight) * act(gate) * up) Wd^T
  void Forward(const MatrixView& x_out);
  // From dx: sets d_norm.
  void Backward(LoraAdapter& trained);

 private:
  void Activate();

  const LayerContext& context_;
  const Activations& a_;
  const Scratch& s_;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_SHARED_EXPERT_H_
