// The linears of a layer that share an input, with the adapters of a pass.
#ifndef QLORA_PASS_LINEAR_GROUP_H_
#define QLORA_PASS_LINEAR_GROUP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "pass/decoder.h"

namespace qlora {

// One layer of one pass. Everything must outlive this.
struct LayerContext {
  const Decoder& decoder;
  const PassInputs& inputs;
  std::int64_t layer;
  const StatePool* pool;  // or null; sequences go on from their slots, and leave theirs there
  const InputObserver* observer;  // or null
  Activations& buffers;
  bool trains_below = true;  // the backward pass needs the gradient below this layer

  Backend& backend() const { return decoder.backend(); }
  const DecoderConfig& config() const { return decoder.config(); }
  const LayerWeights& weights() const { return decoder.weights().layers[layer]; }
  LayerActivations& activations() const { return buffers.layers[layer]; }
  const PerLinear<MatrixView>& u() const { return activations().u; }
  // Sequences begin with an empty state. all: that of every slot; may be empty.
  void ClearNewSlots(const MatrixView& all) const;
  template <typename AnyOp>
  void Run(const AnyOp& op) const {
    backend().Run(op);
  }
  void Observe(LinearGroup group, const ConstMatrixView& x) const {
    if (observer != nullptr) (*observer)(layer, group, x);
  }
};

// The operands of a group with the adapter of some rows, which may be null.
std::vector<LinearView> BindGroup(const LayerContext& context, LinearGroup group,
                                  const LoraAdapter* adapter);

// The columns of u (N, R of the largest adapter) that `lora` uses; empty without an adapter.
MatrixView Narrowed(const MatrixView& u, const LoraLinear& lora);

// y = [base +] x W^T + bias + LoRA of each linear, with the adapter of each range of rows.
void ForwardGroup(const LayerContext& context, LinearGroup group, const MatrixView& x,
                  std::span<const LinearOutput> outputs, Store store);
// dx = the sum over the linears of dy (W + LoRA); adds the gradients of `trained`, the adapter of
// all rows. us: drop(x) A^T of each, which the backward pass of DoRA computes again, to the same
// bits. dx empty: not computed.
void BackwardGroup(const LayerContext& context, LinearGroup group, const ConstMatrixView& x,
                   std::span<const ConstMatrixView> dys, std::span<const MatrixView> us,
                   const MatrixView& dx, LoraAdapter& trained);

// The linears of expert 0, then of expert 1 ...; those of an expert are there for each range of
// rows with an adapter, one after the other, as FetchBegin counts their slots.
std::vector<LinearView> BindExperts(const LayerContext& context, LinearGroup group);
// The output y, u of linear i of the `group` of each expert: the columns of u that they use.
LinearOutput OutputOfExperts(const MatrixView& y, const MatrixView& u,
                             std::span<const LinearView> linears, std::int64_t group,
                             std::int64_t i);
// Gradients of the linears of all experts. dys[i], us[i]: of linear i of every expert, all slots.
std::vector<LinearGradient> ExpertGradients(std::span<const LoraLinear> loras,
                                            std::span<const ConstMatrixView> dys,
                                            std::span<const MatrixView> us);

}  // namespace qlora

#endif  // QLORA_PASS_LINEAR_GROUP_H_
