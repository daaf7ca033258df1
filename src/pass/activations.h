// The buffers of a pass, laid out for a batch of N rows.
#ifndef QLORA_PASS_ACTIVATIONS_H_
#define QLORA_PASS_ACTIVATIONS_H_

#include <cstdint>
#include <vector>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "base/arena.h"
#include "base/matrix.h"
#include "config/config.h"
#include "model/weights.h"
#include "pass/blocks/any_block.h"
#include "pass/blocks/expert_slots.h"
#include "pass/blocks/per_layer.h"
#include "pass/dora.h"

namespace qlora {

// The activations that the backward pass of a layer recomputes; memory falls and time rises down
// the list. Norms, the gated activation and the softmax are always recomputed. Gradients are the
// same bits.
enum class Recompute : std::uint8_t {
  kNone,       // outputs of all matrix products are kept
  kAttention,  // gate and up are kept
  kMlp,        // gate and up are computed again
  kLayer,      // only the layer's input is kept (gradient checkpointing)
};
inline constexpr bool RecomputesAttention(Recompute level) {
  return level == Recompute::kAttention || level == Recompute::kLayer;
}
inline constexpr bool RecomputesMlp(Recompute level) { return level >= Recompute::kMlp; }

// Activations of one layer. Here and in its blocks, "act" is the activation type, "wide" the wide
// type.
struct LayerActivations {
  MatrixView x_in;        // (N, D) wide: residual stream entering the layer
  MatrixView mixer_rstd;  // (1, N) wide
  LayerMixer::Activations mixer;
  MatrixView x_mid;     // (N, D) wide: residual stream after the mixer
  MatrixView mlp_rstd;  // (1, N) wide
  LayerMlp::Activations mlp;
  PerLayerBlock::Activations per_layer;
  // (N, R) wide each: drop(x) A^T. With experts one for all gates, one for all ups and one for all
  // downs, (S, R) with the largest R, where S is N * k; likewise of experts beside the MLP.
  PerLinear<MatrixView> u;
};

// The inputs of a pass apart from weights, as PrepareInputs uploads them.
struct InputBuffers {
  // (3 and one per rotary table, N) int32: ids, rows of the tables, head rows, targets; one more
  // for rows of the table of per-layer embeddings. They are uploaded at once.
  MatrixView indices;
  // (2, M) int32: the rows of M unfolded rows, and the first unfolded row of each row, N at most;
  // empty without branches.
  MatrixView unfolded;
  // Training only.
  MatrixView row_scale;  // (1, N) wide: the factor of the loss of each supervised row
  MatrixView noise;      // (1, N) wide: NEFTune's magnitude of each row
};

// Everything one pass writes. Layout is cheap: each batch is laid out again over an arena that was
// planned for the largest one.
struct Activations {
  InputBuffers inputs;
  std::vector<LayerActivations> layers;  // L; empty outside of the stage
  // Training: x_in, x_mid and x_out are separate buffers. Otherwise they are one buffer, to which
  // layers add.
  bool keeps_stream = false;
  MatrixView x_out;  // (N, D) wide: residual stream after the last layer
  MatrixView norm;   // (N, D) act: scratch, the normalised input of a group of linears
  // Backward only; empty otherwise.
  MatrixView dx;      // (N, D) wide: gradient of the residual stream
  MatrixView d_norm;  // (N, D) act: gradient of `norm`, and of the outputs of blocks under post
                      // norms; wide with experts, which add to it
  PerLayerBuffers per_layer;
  ExpertBuffers experts;
  DoraBuffers dora;
  // The output head, a chunk of C rows at a time.
  MatrixView head_x;     // (C, D) wide: gathered rows of x_out
  MatrixView head_norm;  // (C, D) act
  MatrixView head_rstd;  // (1, C) wide
  MatrixView head_dx;    // (C, D) wide
  MatrixView logits;     // (C, V) wide
  MatrixView row_stats;  // (4, N) wide: log p(target) of each supervised row; 1 where its target
                         // is the first choice; the mean of its logits; the entropy of its p
  MatrixView sums;       // (1, 2) float64: the sums of row_stats over the supervised rows
};

// The sizes that a layout depends on.
struct ActivationShape {
  std::int64_t rows = 0;             // N
  std::int64_t head_rows = 0;        // C
  bool training = false;             // with the buffers of the backward pass
  std::vector<Recompute> recompute;  // L, read when training
  std::int64_t unfolded = 0;         // M: Batch::unfolded_rows
};

// Rows of one chunk of the output head for a pass with `rows` supervised rows: about 32 MiB of
// float32 logits, a multiple of 64 rows. None where another stage has the head.
std::int64_t HeadRows(const DecoderConfig& config, std::int64_t rows);

// What buffers depend on in the adapters that passes may use. Found once for many passes, because
// it walks the list of tensors.
struct AdapterSizes {
  // The linears of one row of LayerTensors: the largest rank among them and the adapters.
  struct Place {
    LinearGroup group;
    bool of_experts;
    std::int64_t rank;  // R; 0: none is adapted
  };

  AdapterSizes(const DecoderConfig& config, const Adapters& adapters);

  // True where buffers for these adapters serve the others in evaluation.
  bool Holds(const AdapterSizes& other) const;

  std::vector<std::vector<Place>> layers;  // L
  bool trains_per_layer = false;           // what makes per-layer inputs of the embedding
  // O of the largest linear and of the largest group; 0 without DoRA.
  std::int64_t dora_linear = 0;
  std::int64_t dora_group = 0;
};

// adapters: the adapters that a pass may use.
Activations LayoutActivations(Carver& carver, const DecoderConfig& config,
                              const AdapterSizes& adapters, const Precision& precision,
                              const ActivationShape& shape);
// The bytes that LayoutActivations takes.
std::size_t BytesOfPass(const DecoderConfig& config, const Adapters& adapters,
                        const Precision& precision, const ActivationShape& shape);
// The same in the memory of one pass at a time. Errors: Runtime when it is too small.
Activations LayoutActivations(Arena& memory, const DecoderConfig& config,
                              const AdapterSizes& adapters, const Precision& precision,
                              const ActivationShape& shape);

}  // namespace qlora

#endif  // QLORA_PASS_ACTIVATIONS_H_
