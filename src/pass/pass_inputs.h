// The inputs of one pass apart from weights, prepared once per batch in the memory of the backend.
#ifndef QLORA_PASS_PASS_INPUTS_H_
#define QLORA_PASS_PASS_INPUTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "adapter/lora.h"
#include "backend/ops.h"
#include "base/batch.h"
#include "pass/state_pool.h"

namespace qlora {

class Decoder;
struct Activations;

// The adapter of a range of rows; null: the base alone.
struct AdapterRows {
  const LoraAdapter* adapter = nullptr;
  std::int64_t begin = 0;
  std::int64_t rows = 0;
};

// Training-time randomness of one micro-batch; enabled == false: evaluation.
struct DropoutState {
  bool enabled = false;
  std::uint64_t seed = 0;
  std::uint64_t micro_step = 0;  // counts micro-batches from the start of training, < 2^25
  double neftune_alpha = 0;      // noise on the embeddings (Jain et al., arXiv:2310.05914); 0: none
};

struct PassInputs {
  std::int64_t rows = 0;              // N
  std::vector<AdapterRows> adapters;  // cover the N rows in order
  std::vector<AttentionSpan> spans;   // one per sequence
  std::vector<SequenceSpan> parts;    // the same rows of keys, for mixers with a state
  // Where sequences share a prefix, mixers read keys and values, or the inputs of a recurrence, of
  // M unfolded rows, in which each sequence is whole.
  IndexView unfolded;  // (M) the row of each unfolded row; empty: no prefixes, and M is N
  IndexView folded;    // (N) the unfolded row of each row
  // Of linears. With a pool not kFastest, so that the bits of a sequence depend on no other.
  SumOrder order = SumOrder::kFastest;
  // With a pool: the slots whose sequences begin, in the empty state.
  std::vector<std::int64_t> new_slots;
  DropoutState dropout;
  IndexView ids;            // (N) rows of the token embedding
  IndexView per_layer_ids;  // (N) the same of the table of per-layer embeddings, where there is one
  std::vector<IndexView> rope_rows;  // one per DecoderConfig::ropes: (N) rows of its table
  IndexView head_rows;               // (M) the supervised rows, or the rows whose logits are needed
  std::vector<AdapterRows> heads;    // cover the M head rows in order: adapters with a head
  IndexView targets;                 // (M) of the supervised rows; empty without
  ConstMatrixView row_scale;         // (1, M) wide: factors of their losses; empty: no gradients
  ConstMatrixView noise;             // (1, N) wide: NEFTune's magnitudes; empty: none

  bool unfolds() const { return unfolded.size > 0; }
};

struct PassOptions {
  std::vector<AdapterRows> adapters;  // in row order; rows between them use the base alone
  DropoutState dropout = {};
  std::span<const float> row_scale = {};  // one factor per supervised row, or empty: no gradients
};

// Throws Runtime, a bug of the caller, unless `trained` is the adapter of all rows.
void CheckTrained(const PassInputs& inputs, const LoraAdapter& trained);

// One adapter for all rows; no adapter when null.
std::vector<AdapterRows> ForAllRows(const LoraAdapter* adapter, std::int64_t rows);

// Uploads a batch to the inputs of `activations`, which must be laid out for its rows and adapters.
// The result is valid until the next upload to the same activations. Errors: Runtime, a bug of the
// caller, for a batch that does not fit the layout, ids and targets outside of the vocabulary,
// positions beyond the planned ones.
PassInputs PrepareInputs(const Decoder& decoder, const Batch& batch, const PassOptions& options,
                         Activations& activations);
// Gives the supervised rows of a training pass other factors.
void SetRowScale(const Decoder& decoder, std::span<const float> scale, const PassInputs& inputs,
                 Activations& activations);

// The next tokens of the sequence in a slot of a pool.
struct SlotRows {
  std::int64_t slot = 0;
  std::int64_t first = 0;             // position of the first token; at 0 a sequence begins
  std::span<const std::int32_t> ids;  // at least one
  // Of the sequence with all tokens that follow before its tables are chosen again.
  std::int64_t length = 0;
  const LoraAdapter* adapter = nullptr;
  std::int64_t logit_rows = 1;  // of the last so many tokens, logits are wanted
};

// Uploads the next tokens of sequences, one after the other; with kFew, at most kMostFewRows.
// head_rows are the rows whose logits are wanted. Errors: as PrepareInputs, and for slots
// and positions that the pool lacks.
PassInputs PrepareSlotInputs(const Decoder& decoder, std::span<const SlotRows> slots,
                             SumOrder order, const StatePool& pool, Activations& activations);

}  // namespace qlora

#endif  // QLORA_PASS_PASS_INPUTS_H_
