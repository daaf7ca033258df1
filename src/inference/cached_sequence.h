// One sequence that is generated token by token.
//
//   Model (model.cc)      loads weights and adapter; generates, chats, evaluates for include/qlora
//   CachedSequence        prompt -> a pass with the state of the sequence -> logits of the last
//   generation_memory.h   tables, activations and state, kept from text to text
//   sampler.h             logits -> the next token
//   stop_text.h           ends the text at a stop string; tokenizer/ decodes ids as they come
//   dataset_evaluation.h  an objective over a data set, without a state
#ifndef QLORA_INFERENCE_CACHED_SEQUENCE_H_
#define QLORA_INFERENCE_CACHED_SEQUENCE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pass/decoder.h"
#include "pass/eval_memory.h"
#include "pass/sequence_state.h"

namespace qlora {

class CachedSequence {
 public:
  // passes: in memory for passes of at most max_rows rows with `adapter`, which may be null. The
  // state is emptied. All must outlive this.
  CachedSequence(const Decoder& decoder, const LoraAdapter* adapter, EvalMemory& passes,
                 std::int64_t max_rows, SequenceState& state);

  // Appends ids, of which there is at least one. Returns the softcapped logits (V) of the last.
  // When the sequence grows beyond the original context of longrope, its keys are computed again
  // with the other frequencies.
  std::vector<float> Append(std::span<const std::int32_t> ids);

  // Appends the prompt, then the tokens that `next` chooses from the logits of the tokens before,
  // up to `most` of them. `next` ends the text by returning nothing.
  using NextToken = std::function<std::optional<std::int32_t>(std::span<const float> logits)>;
  void Generate(std::span<const std::int32_t> prompt, std::int64_t most, const NextToken& next);

 private:
  const Decoder& decoder_;
  const LoraAdapter* adapter_;
  EvalMemory& passes_;
  std::int64_t max_rows_;
  SequenceState& state_;
  std::vector<std::int32_t> ids_;
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_CACHED_SEQUENCE_H_
