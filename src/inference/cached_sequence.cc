#include "inference/cached_sequence.h"

#include <algorithm>
#include <cmath>

#include "pass/eval_memory.h"
#include "pass/loss.h"
#include "pass/sequence_state.h"

namespace qlora {

CachedSequence::CachedSequence(const Decoder& decoder, const LoraAdapter* adapter,
                               EvalMemory& passes, std::int64_t max_rows, SequenceState& state)
    : decoder_(decoder), adapter_(adapter), passes_(passes), max_rows_(max_rows), state_(state) {
  state_.length = 0;
}

std::vector<float> CachedSequence::Append(std::span<const std::int32_t> ids) {
  // All tokens are kept, because longrope may need their keys again. An empty state is the request
  // to compute them.
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  const std::int64_t length = std::ssize(ids_);
  if (!decoder_.ropes().HaveSameTables(state_.length, length)) state_.length = 0;
  // A pass takes the tokens that the state does not hold, max_rows at a time: a prompt in parts,
  // then each new token alone. Only the last pass is followed by the head.
  while (true) {
    const std::int64_t rows = std::min(max_rows_, length - state_.length);
    Activations& activations = passes_.ForRows(rows);
    const PassInputs inputs =
        PrepareNextInputs(decoder_, std::span(ids_).subspan(state_.length, rows), state_, length,
                          adapter_, activations);
    Embed(decoder_, inputs, activations);
    ForwardCached(decoder_, inputs, state_, activations);
    state_.length += rows;
    if (state_.length < length) continue;
    const MatrixView last = Logits(decoder_, inputs, 0, 1, activations);  // (1, V)
    std::vector<float> logits = Download<float>(decoder_.backend().memory(), last);
    // (V) on the host, where a penalty or a draw reads them: too few values for an op.
    if (const float cap = decoder_.config().final_softcap; cap > 0) {
      for (float& logit : logits) logit = cap * std::tanh(logit / cap);
    }
    return logits;
  }
}

void CachedSequence::Generate(std::span<const std::int32_t> prompt, std::int64_t most,
                              const NextToken& next) {
  std::vector<float> logits = Append(prompt);
  for (std::int64_t n = 0; n < most; ++n) {
    const std::optional<std::int32_t> token = next(logits);
    if (!token) return;
    // No pass for a token that nobody reads.
    if (n + 1 < most) logits = Append({&*token, 1});
  }
}

}  // namespace qlora
