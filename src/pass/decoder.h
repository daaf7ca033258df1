// The decoder: one function of weights, adapters, the inputs of a pass and buffers, for all
// families, for training, evaluation, prefill and decoding. The arguments that a call writes are
// not const.
//
//   pass_inputs.h   ids, rows of the rotary tables, supervised rows, targets, factors of losses:
//                   uploaded once per batch
//   activations.h   every buffer of a pass, and its size before weights are read (pass_shape.h)
//   decoder.cc      Forward: embedding, then layers 0 ... L-1; Backward: the layers in reverse
//   layer.h         one layer: its blocks in order, and the same in reverse
//   blocks/         what a layer is made of, a file each: attention, delta rule, short convolution;
//                   MLP, experts, both; per-layer embeddings (any_block.h)
//   linear_group.h  the linears that share an input, with the adapter of each range of rows
//   loss.h          head, loss and log-probabilities, a chunk of rows at a time
//   dora.h, neftune.h   the buffers and steps that each method adds
//   state_pool.h    what sequences carry from pass to pass: the states of their mixers, in slots
//   slot_pass.h     passes over rows of many such sequences, for their next tokens
//
// Gradients are written by hand: there is no graph and no autograd, and only adapters receive
// weight gradients. Embeddings and heads that are trained in full take the place of the tables of
// the base (EmbeddingOf and HeadOf in adapter/lora.h).
//
// Batches are never padded. Sequences are stored one after the other (base/batch.h), attention
// stays inside a sequence, and each sequence chooses its rotary table and its adapter. So packing
// changes nothing in the model.
//
// Because the decoder runs on any backend, tests run it on complex numbers and check its gradients
// as a whole by complex step (tests/pass/decoder_gradient_test.cc).
#ifndef QLORA_PASS_DECODER_H_
#define QLORA_PASS_DECODER_H_

#include <cstdint>
#include <functional>
#include <span>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "config/config.h"
#include "model/weights.h"
#include "pass/activations.h"
#include "pass/pass_inputs.h"
#include "pass/rope.h"
#include "pass/state_pool.h"

namespace qlora {

// The frozen parts of a decoder. All are borrowed, except the tables of RoPE, which follow from the
// configuration. Everything must outlive this.
class Decoder {
 public:
  // Positions below max_positions can be used.
  Decoder(Backend& backend, const DecoderConfig& config, const DecoderWeights& weights,
          const Precision& precision, std::int64_t max_positions)
      : backend_(backend),
        config_(config),
        weights_(weights),
        precision_(precision),
        ropes_(backend.memory(), config, precision.wide, max_positions) {}

  Backend& backend() const { return backend_; }
  const DecoderConfig& config() const { return config_; }
  const DecoderWeights& weights() const { return weights_; }
  const Precision& precision() const { return precision_; }
  const RopeTables& ropes() const { return ropes_; }

 private:
  Backend& backend_;
  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  Precision precision_;
  RopeTables ropes_;
};

// Runs all layers, or those of a stage from their x_in on; afterwards activations.x_out holds the
// residual stream of every row.
void Forward(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
             const InputObserver& observer = nullptr);
// Writes the embeddings of the ids, with their noise, to where the first layer reads them, and
// per-layer embeddings to where all layers do; a part of Forward. observer: or null.
void Embed(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
           const InputObserver* observer = nullptr);
// After Embed: runs all layers on the next tokens of sequences, which go on from their slots and
// leave their states there. inputs: from PrepareSlotInputs.
void ForwardSlots(const Decoder& decoder, const PassInputs& inputs, const StatePool& pool,
                  Activations& activations);

// Adds the gradients of every matrix of `trained`, which is the adapter of all rows of `inputs`,
// from activations.dx, which is consumed. Forward and LossAndGradient must have run on the same
// inputs and activations.
void Backward(const Decoder& decoder, const PassInputs& inputs,
              std::span<const Recompute> recompute, Activations& activations, LoraAdapter& trained);

}  // namespace qlora

#endif  // QLORA_PASS_DECODER_H_
