// The buffers of a pass, laid out for a batch of N rows.
#ifndef QLORA_PASS_ACTIVATIONS_H_
#define QLORA_PASS_ACTIVATIONS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "base/matrix.h"
#include "model/config.h"
#include "model/lora.h"
#include "model/weights.h"
#include "pass/delta_rule.h"
#include "pass/dora.h"
#include "pass/experts.h"
#include "pass/per_layer.h"
#include "pass/short_conv.h"
#include "pass/side_experts.h"

namespace qlora {

// The activations that the backward pass of a layer recomputes; memory falls and time rises down
// the list. Norms, the gated activation and the softmax are always recomputed. Gradients are the
// same bits.
enum class Recompute : std::uint8_t {
  kNone,       // outputs of all matrix products are kept
  kAttention,  // gate and up are kept
  kMlp,        // gate and up are computed again
  kLayer,      // only the layer's input is kept (gradient checkpointing)
  kOffload,    // the same, and the input waits in host memory; for devices with separate memory
};
inline constexpr bool RecomputesAttention(Recompute level) {
  return level == Recompute::kAttention || level >= Recompute::kLayer;
}
inline constexpr bool RecomputesMlp(Recompute level) { return level >= Recompute::kMlp; }

// Scratch of one layer, in memory that all layers share.
struct LayerScratch {
  MatrixView act;  // (S, F) act: act(gate) * up
  // Backward only; empty otherwise.
  MatrixView d_act;   // (S, F) act: gradient of `act`
  MatrixView d_attn;  // (N, H*K) act: gradient of `attn`; shares memory with d_act
  MatrixView d_qkv;   // (N, (H+2G)K) act: only where the family fuses q, k and v
  MatrixView d_q;     // (N, H*K) act
  MatrixView d_k;     // (N, G*K) act
  MatrixView d_v;     // (N, G*K) act
  // Of attention whose output has a gate.
  MatrixView gated;     // (N, H*K) act: the output times sigmoid(gate)
  MatrixView d_q_gate;  // (N, 2*H*K) act: gradient of `q_gate`; backward only
  DeltaRuleScratch delta_rule;
  ShortConvScratch short_conv;
  PerLayerScratch per_layer;
  SideScratch side;
};

// Activations of one layer. "act": the activation type, "wide": the wide type. Where the family
// fuses linears, q, k, v are columns of qkv, and gate, up of gate_up. S is N, or the N * k slots of
// a mixture of experts.
struct LayerActivations {
  MatrixView x_in;  // (N, D) wide: residual stream entering the layer
  // (N, D) wide: where x_in waits in staging() while other layers have its place; empty for layers
  // that keep it.
  MatrixView x_in_host;
  MatrixView attn_rstd;  // (1, N) wide
  MatrixView qkv;        // (N, (H+2G)K) act; empty where q, k, v have their own memory
  MatrixView q_gate;     // (N, 2*H*K) act: query and gate of each head; empty without gates
  MatrixView q_pre;      // (N, H*K) act: before the head norm; empty without norms of heads
  MatrixView k_pre;      // (N, G*K) act
  MatrixView v_pre;      // (N, G*K) act: before the norm of values; empty without, or where it is
                         // k_pre
  MatrixView q_rstd;     // (1, N*H) wide
  MatrixView k_rstd;     // (1, N*G) wide
  MatrixView v_rstd;     // (1, N*G) wide; empty without norm of values
  MatrixView q;          // (N, H*K) act: after head norm and RoPE
  // Layers that attend to the keys and values of another have none of their own. Those of which
  // others read keys and values keep them for the whole pass.
  MatrixView k;  // (N, G*K) act: after head norm and RoPE
  MatrixView v;  // (N, G*K) act: after the norm of values
  // Backward only, of layers of which others read keys and values: what those add.
  MatrixView d_k_others;            // (N, G*K) wide
  MatrixView d_v_others;            // (N, G*K) wide
  MatrixView attn;                  // (N, H*K) act: attention output
  MatrixView lse;                   // (N, H) wide
  DeltaRuleActivations delta_rule;  // in the place of all from qkv to lse; likewise below
  ShortConvActivations short_conv;
  MatrixView o;         // (N, D) act: o_proj output; empty without post norms
  MatrixView o_rstd;    // (1, N) wide
  MatrixView x_mid;     // (N, D) wide: residual stream after attention
  MatrixView mlp_rstd;  // (1, N) wide
  MatrixView gate_up;   // (N, 2F) act; empty where gate and up have their own memory
  MatrixView gate;      // (S, F) act; the backward pass leaves its gradient here
  MatrixView up;        // (S, F) act; likewise
  // (N, D) act: down_proj output, or its norm and that of the experts beside the MLP; empty without
  // post norms.
  MatrixView down;
  MatrixView down_rstd;  // (1, N) wide
  PerLayerActivations per_layer;
  // (N, R) wide each: drop(x) A^T. With experts one for all gates, one for all ups and one for all
  // downs, (S, R) with the largest R; likewise of experts beside the MLP.
  PerLinear<MatrixView> u;
  ExpertActivations experts;
  SideActivations side;
  LayerScratch scratch;
};

// The places on the device that hold the inputs of offloaded layers in turn: ops read one while
// another is copied. The last offloaded layers, which the backward pass reads first, keep their
// inputs there.
inline constexpr std::int64_t kInputSlots = 2;

// The most rows of a token embedding in host memory, with elements of 16 bits, that wait for their
// upload. A pass over more rows waits in between.
inline constexpr std::int64_t kStagedRows = 4096;
inline std::size_t StagedBytes(const DecoderConfig& config) {
  return BytesOf(DType::kBF16, kStagedRows * config.hidden_size);
}

// The inputs of a pass apart from weights, as PrepareInputs uploads them.
struct InputBuffers {
  // (3 and one per rotary table, N) int32: ids, rows of the tables, head rows, targets; one more
  // for rows of the table of per-layer embeddings. They are uploaded at once.
  MatrixView indices;
  // (kStagedRows, 2 D) bytes in staging(): rows of a token embedding in host memory on their way,
  // or empty.
  MatrixView staged_rows;
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
  MatrixView d_norm;  // (N, D) act: gradient of `norm`, and of `o` and `down` under post norms;
                      // wide with experts, which add to it
  PerLayerBuffers per_layer;
  ExpertBuffers experts;
  DoraBuffers dora;
  // The output head, a chunk of C rows at a time.
  MatrixView head_x;     // (C, D) wide: gathered rows of x_out
  MatrixView head_norm;  // (C, D) act
  MatrixView head_rstd;  // (1, C) wide
  MatrixView head_dx;    // (C, D) wide
  MatrixView logits;     // (C, V) wide
  MatrixView row_stats;  // (2, N) wide: log p(target) of each supervised row; 1 where its target
                         // is the first choice
  MatrixView sums;       // (1, 2) float64: the sums of row_stats over the supervised rows
};

// The sizes that a layout depends on.
struct ActivationShape {
  std::int64_t rows = 0;             // N
  std::int64_t head_rows = 0;        // C
  bool training = false;             // with the buffers of the backward pass
  std::vector<Recompute> recompute;  // L, read when training
  bool host_embedding = false;       // DecoderWeights::host_embedding
};

// Rows of one chunk of the output head for a pass with `rows` supervised rows; none where another
// stage has the head.
inline std::int64_t HeadRows(const Backend& backend, const DecoderConfig& config, std::int64_t rows,
                             WorkSize size) {
  if (!config.has_head()) return 0;
  return std::min(rows, backend.HeadChunkRows(config.vocab_size, size));
}

// The sizes of the memory of one pass at a time, and that memory, which holds its activations.
struct PassBytes {
  std::size_t arena = 0;
  std::size_t staging = 0;
};
struct PassMemory {
  PassMemory(Memory& memory, const PassBytes& bytes)
      : arena(bytes.arena, memory), staging(bytes.staging, memory.staging()) {}

  Arena arena;
  Arena staging;  // in staging(): inputs of layers that are offloaded, and staged rows
};

// adapters: the adapters that a pass may use. staging: carves memory().staging(); null when nothing
// of the shape is there.
Activations LayoutActivations(Carver& carver, const DecoderConfig& config, const Adapters& adapters,
                              const Precision& precision, const ActivationShape& shape,
                              Carver* staging = nullptr);
// The bytes that LayoutActivations takes.
PassBytes BytesOfPass(const DecoderConfig& config, const Adapters& adapters,
                      const Precision& precision, const ActivationShape& shape);
// Errors: Runtime when the memory is too small.
Activations LayoutActivations(PassMemory& memory, const DecoderConfig& config,
                              const Adapters& adapters, const Precision& precision,
                              const ActivationShape& shape);
}  // namespace qlora

#endif  // QLORA_PASS_ACTIVATIONS_H_
