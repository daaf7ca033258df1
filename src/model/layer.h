// One layer of one pass: its steps forward, and the same steps backward.
#ifndef QLORA_MODEL_LAYER_H_
#define QLORA_MODEL_LAYER_H_

#include <cstdint>

#include "model/decoder.h"
#include "model/linear_group.h"

namespace qlora {

class Layer {
 public:
  // observer: or null. cache, when given, holds the keys and values of the sequence, and receives
  // those of this pass. Everything must outlive this.
  Layer(const Decoder& decoder, const PassInputs& inputs, std::int64_t layer, KvCache* cache,
        const InputObserver* observer, Activations& activations);

  void ForwardAttention();
  // x_out (N, D): the residual stream after the layer; empty: only what the backward pass needs.
  void ForwardMlp(const MatrixView& x_out);
  void BackwardMlp(LoraAdapter& trained);
  // wanted: the gradient below this layer is needed.
  void BackwardAttention(LoraAdapter& trained, bool wanted);

 private:
  // A linear whose result joins the residual stream, normalised first in families with post norms.
  struct Branch {
    LinearGroup group;
    MatrixView y;  // (N, D): the result; empty without post norms
    ConstMatrixView post_norm;
    MatrixView rstd;
    MatrixView u;
  };

  template <typename AnyOp>
  void Run(const AnyOp& op) {
    context_.backend().Run(op);
  }
  void Norm(const MatrixView& x, const ConstMatrixView& weight, const MatrixView& rstd);
  // dx += the gradient of Norm, of d_norm.
  void NormBackward(const MatrixView& x, const ConstMatrixView& weight, const MatrixView& rstd);
  void ProjectQkv();
  void ProjectQkvBackward(LoraAdapter& trained, bool wanted);
  void ProjectGateUp();
  void NormHeads();
  void NormHeadsBackward();
  void Rotate(const MatrixView& q, const MatrixView& k, bool inverse);
  // x_out = x + branch(input); x_out may be x.
  void AddBranch(const Branch& branch, const ConstMatrixView& input, const MatrixView& x,
                 const MatrixView& x_out);
  void BranchBackward(const Branch& branch, const ConstMatrixView& input, const MatrixView& d_input,
                      LoraAdapter& trained);
  void Activate();
  // Steps 8 to 10 of a mixture of experts, and their mirror (experts.cc).
  void ForwardExperts(const MatrixView& x_out);
  void BackwardExperts(LoraAdapter& trained);

  LayerActivations& a_;
  Activations& shared_;
  LayerContext context_;
  const LayerWeights& w_;
  const DecoderConfig& config_;
  AttentionShape shape_;
  Branch o_;
  Branch down_;
  // The keys and values that this pass writes, and all those that attention reads: activations, or
  // rows of the cache if cached_.
  bool cached_ = false;
  MatrixView k_, v_;          // (N, G*K)
  MatrixView all_k_, all_v_;  // (M, G*K)
};

}  // namespace qlora

#endif  // QLORA_MODEL_LAYER_H_
