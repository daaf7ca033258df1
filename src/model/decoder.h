// The decoder: what its passes read and write. forward.cc holds the one forward pass for training,
// evaluation, prefill and decode; backward.cc is its mirror.
#ifndef QLORA_MODEL_DECODER_H_
#define QLORA_MODEL_DECODER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "base/batch.h"
#include "model/config.h"
#include "model/lora.h"
#include "model/weights.h"

namespace qlora {

// What the backward pass of a layer recomputes; memory falls and time rises down the list. Norms,
// the gated activation and the softmax are always recomputed. Gradients are the same bits.
enum class Recompute : std::uint8_t {
  kNone,       // outputs of all matrix products are kept
  kAttention,  // gate and up are kept
  kMlp,        // gate and up are computed again
  kLayer,      // only the layer's input is kept (gradient checkpointing)
};
inline constexpr bool RecomputesAttention(Recompute level) {
  return level == Recompute::kAttention || level == Recompute::kLayer;
}
inline constexpr bool RecomputesMlp(Recompute level) {
  return level == Recompute::kMlp || level == Recompute::kLayer;
}

// Activations of one layer for a batch of N rows. "act": the activation type, "wide": the wide
// type. Where the family fuses linears, q, k, v are columns of qkv, and gate, up of gate_up. S is
// N, or the N * k slots of a mixture of experts.
struct LayerActivations {
  MatrixView x_in;       // (N, D) wide: residual stream entering the layer
  MatrixView attn_rstd;  // (1, N) wide
  MatrixView qkv;        // (N, (H+2G)K) act: fused families only
  MatrixView q_pre;      // (N, H*K) act: before the head norm; empty without qk_norm
  MatrixView k_pre;      // (N, G*K) act
  MatrixView q_rstd;     // (1, N*H) wide
  MatrixView k_rstd;     // (1, N*G) wide
  MatrixView q;          // (N, H*K) act: after head norm and RoPE
  MatrixView k;          // (N, G*K) act: after head norm and RoPE
  MatrixView v;          // (N, G*K) act
  MatrixView attn;       // (N, H*K) act: attention output
  MatrixView lse;        // (N, H) wide
  MatrixView o;          // (N, D) act: o_proj output; empty without post norms
  MatrixView o_rstd;     // (1, N) wide
  MatrixView x_mid;      // (N, D) wide: residual stream after attention
  MatrixView mlp_rstd;   // (1, N) wide
  MatrixView gate_up;    // (N, 2F) act: fused families only
  MatrixView gate;       // (S, F) act; the backward pass leaves its gradient here
  MatrixView up;         // (S, F) act; likewise
  MatrixView down;       // (N, D) act: down_proj output; empty without post norms
  MatrixView down_rstd;  // (1, N) wide
  // (N, R) wide each: drop(x) A^T. With experts one for all gates, one for all ups and one for all
  // downs, (S, R) with the largest R.
  PerLinear<MatrixView> u;
  // Mixture of experts only.
  MatrixView router;        // (N, E) wide: logits; the backward pass leaves their gradient here
  MatrixView pair_weights;  // (N, k) wide
  MatrixView slot_weights;  // (1, S) wide: the same in the order of slots
  RoutingView routing;      // S = N * k
};

// What Loss adds up over the supervised rows of a batch.
struct LossSum {
  double loss = 0;        // of -log p(target)
  std::int64_t hits = 0;  // rows whose most probable token is the target
};

// Everything one pass needs, laid out for a batch of N rows. Layout is cheap: it is done anew for
// each batch over an arena that was planned for the largest one.
struct Activations {
  std::vector<LayerActivations> layers;  // L
  MatrixView x_out;                      // (N, D) wide: residual stream after the last layer
  MatrixView norm;  // (N, D) act: scratch, the normalised input of a group of linears
  MatrixView act;   // (S, F) act: scratch, act(gate) * up
  MatrixView slot;  // (S, D) act: scratch, rows that experts read and write; experts only
  // Backward only; empty otherwise.
  MatrixView dx;      // (N, D) wide: gradient of the residual stream
  MatrixView d_norm;  // (N, D) act: gradient of `norm`, and of `o` and `down` under post norms;
                      // wide with experts, which add to it
  MatrixView d_act;   // (S, F) act: gradient of `act`
  MatrixView d_slot;  // (S, D) act: gradient of `slot`
  MatrixView d_slot_weights;  // (1, S) wide
  MatrixView d_pair_weights;  // (N, k) wide
  MatrixView d_attn;          // (N, H*K) act: gradient of `attn`; shares memory with d_act
  MatrixView d_qkv;           // (N, (H+2G)K) act: fused families only
  MatrixView d_q;             // (N, H*K) act
  MatrixView d_k;             // (N, G*K) act
  MatrixView d_v;             // (N, G*K) act
  // DoRA only.
  MatrixView dora_z;     // (N, largest O) wide: x (W + scale B A)^T of one linear
  MatrixView dora_dz;    // (N, largest O of a group) act: the gradients of a group, side by side
  MatrixView dora_gain;  // (1, largest O) wide
  MatrixView dora_dots;  // (1, largest O) wide
  MatrixView noise;      // (1, N) wide: NEFTune's magnitude of each row, training only
  // The output head, a chunk of C rows at a time.
  MatrixView head_x;     // (C, D) wide: gathered rows of x_out
  MatrixView head_norm;  // (C, D) act
  MatrixView head_rstd;  // (1, C) wide
  MatrixView head_dx;    // (C, D) wide
  MatrixView logits;     // (C, V) wide
  MatrixView row_stats;  // (2, C) wide: log p(target) of each row; 1 where the target is first
  MatrixView row_scale;  // (1, C) wide: the factor of the loss of each row
  MatrixView sums;       // (1, 2) float64: the sums of row_stats over the supervised rows
};

// Keys and values of one sequence, for incremental decoding.
struct KvCache {
  std::vector<MatrixView> k;  // L x (capacity, G*K) act
  std::vector<MatrixView> v;  // L x (capacity, G*K) act
  std::int64_t length = 0;    // positions filled
};

// What a layout depends on.
struct ActivationShape {
  std::int64_t rows = 0;             // N
  std::int64_t head_rows = 0;        // C
  bool training = false;             // with the buffers of the backward pass
  std::vector<Recompute> recompute;  // L, read when training
};

// Rows of one chunk of the output head for a pass with `rows` supervised rows.
inline std::int64_t HeadRows(const Backend& backend, const DecoderConfig& config,
                             std::int64_t rows) {
  return std::min(rows, backend.HeadChunkRows(config.vocab_size));
}

Activations LayoutActivations(Carver& carver, const DecoderConfig& config,
                              const LoraAdapter* adapter, const Precision& precision,
                              const ActivationShape& shape);
KvCache LayoutKvCache(Carver& carver, const DecoderConfig& config, const Precision& precision,
                      std::int64_t capacity);

// Training-time randomness of one micro-batch; enabled == false: evaluation.
struct DropoutState {
  bool enabled = false;
  std::uint64_t seed = 0;
  std::uint64_t micro_step = 0;  // counts micro-batches from the start of training, < 2^25
  double neftune_alpha = 0;      // noise on the embeddings (Jain et al., arXiv:2310.05914); 0: none
};

// Receives x (N, I), the input of a group of linears, before it is multiplied.
using InputObserver = std::function<void(std::int64_t layer, LinearGroup group, ConstMatrixView x)>;

// The decoder bound to a backend: borrowed parts, and the RoPE tables that it owns.
class Decoder {
 public:
  // Positions up to max_positions can be used. adapter may be null. Everything must outlive this.
  Decoder(Backend& backend, const DecoderConfig& config, const DecoderWeights& weights,
          LoraAdapter* adapter, const Precision& precision, std::int64_t max_positions);
  // Bytes of those tables.
  static std::size_t RopeBytes(const DecoderConfig& config, const Precision& precision,
                               std::int64_t max_positions);

  // DoRA: computes the row lengths of W + scale B A anew; wanted after B or A changed. Does nothing
  // without DoRA.
  void RefreshNorms() const;
  // DoRA: sets every magnitude to the row length of W, so that the adapter changes nothing.
  void InitializeMagnitudes() const;

  // Runs all layers; afterwards activations.x_out holds the residual stream of every row.
  void Forward(const Batch& batch, const DropoutState& dropout, Activations& activations) const;
  // Appends one sequence's next tokens to the cache, and runs all layers on them.
  void ForwardCached(std::span<const std::int32_t> ids, KvCache& cache,
                     Activations& activations) const;

  // Logits of the rows of x_out named by `rows` (at most head_rows), into activations.logits.
  MatrixView Logits(std::span<const std::int32_t> rows, Activations& activations) const;

  // The sums over the supervised rows. row_scale: the factor of the loss of each supervised row, in
  // row order, or empty; with it, activations.dx receives the gradient of the sum of
  // row_scale * loss with respect to x_out. logprobs, when given, receives log p(target) of each
  // supervised row, in row order.
  LossSum Loss(const Batch& batch, std::span<const float> row_scale, Activations& activations,
               std::vector<double>* logprobs = nullptr) const;
  // Adds the gradients of every adapter matrix, from activations.dx, which it consumes. Forward
  // and Loss must have run on the same batch and activations. x_out is scratch afterwards.
  void Backward(const Batch& batch, const DropoutState& dropout, Activations& activations,
                std::span<const Recompute> recompute) const;

  // From now on every forward pass calls `observer`.
  void Observe(InputObserver observer) { observer_ = std::move(observer); }

  Backend& backend() const { return backend_; }
  const DecoderConfig& config() const { return config_; }
  LoraAdapter* adapter() const { return adapter_; }
  const Precision& precision() const { return precision_; }

 private:
  void LogitsBackward(std::span<const std::int32_t> rows, MatrixView d_logits,
                      Activations& activations) const;
  struct Pass;  // the rows of one pass: positions, spans, dropout

  // One frequency table for sequences up to the original context length, one for longer ones
  // (longrope); the same table for all other types.
  struct RopePair {
    RopeTable below;
    RopeTable above;
    std::int64_t original_positions = 0;
  };

  static std::vector<RopePair> LayoutRopes(Carver& carver, const DecoderConfig& config,
                                           const Precision& precision, std::int64_t max_positions);

  Pass MakePass(const Batch& batch, const DropoutState& dropout) const;
  const RopeTable& RopeOf(int rope, std::int64_t max_position) const;
  AttentionShape ShapeOf(const LayerConfig& layer) const;
  // index: of the linear in its layer, for the streams of dropout.
  LinearView Bind(const FrozenLinear& frozen, const LoraLinear* lora, const Pass& pass,
                  std::int64_t layer, std::size_t index) const;
  std::vector<LinearView> BindGroup(LinearGroup group, const Pass& pass, std::int64_t layer) const;
  // Linear and LinearBackward of a group, with the row lengths of DoRA. us: drop(x) A^T of each,
  // which the backward pass of DoRA computes again, to the same bits.
  void ForwardGroup(LinearGroup group, const Pass& pass, std::int64_t layer, ConstMatrixView x,
                    std::span<const LinearOutput> outputs, Store store,
                    const Activations& shared) const;
  void BackwardGroup(LinearGroup group, const Pass& pass, std::int64_t layer, ConstMatrixView x,
                     std::span<const LinearGradient> gradients, std::span<const MatrixView> us,
                     MatrixView dx, const Activations& shared) const;
  // NEFTune: noise on the embeddings of a training pass.
  void AddEmbeddingNoise(const Batch& batch, const Pass& pass, Activations& activations) const;
  void Embed(std::span<const std::int32_t> ids, Activations& activations) const;
  void ForwardLayers(const Pass& pass, Activations& activations) const;
  void ForwardAttention(std::int64_t layer, const Pass& pass, LayerActivations& acts,
                        Activations& shared) const;
  // x_out empty: only what the backward pass needs.
  void ForwardMlp(std::int64_t layer, const Pass& pass, LayerActivations& acts, MatrixView x_out,
                  Activations& shared) const;
  // The mixture of experts in place of steps 8 to 10 of ForwardMlp, and its mirror (experts.cc).
  void ForwardExperts(std::int64_t layer, const Pass& pass, LayerActivations& acts,
                      MatrixView x_out, Activations& shared) const;
  void BackwardExperts(std::int64_t layer, const Pass& pass, LayerActivations& acts,
                       Activations& shared) const;
  void BackwardAttention(std::int64_t layer, const Pass& pass, LayerActivations& acts,
                         Activations& shared) const;
  void BackwardMlp(std::int64_t layer, const Pass& pass, LayerActivations& acts,
                   Activations& shared) const;

  Backend& backend_;
  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  LoraAdapter* adapter_;
  Precision precision_;
  std::vector<PerLinear<LoraLinear*>> loras_;  // of each layer; null without adapter
  std::int64_t lowest_trained_layer_ = 0;      // -1: the embeddings
  Arena rope_arena_;
  std::vector<RopePair> ropes_;
  InputObserver observer_;
};

}  // namespace qlora

#endif  // QLORA_MODEL_DECODER_H_
