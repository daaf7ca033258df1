// Which tokens of a rendered conversation are trained on: from bytes of the text to tokens.
#ifndef QLORA_PROMPT_LOSS_MASK_H_
#define QLORA_PROMPT_LOSS_MASK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/batch.h"
#include "prompt/assistant_turns.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Tokens [begin, end) of a sample: an assistant's turn.
struct TurnTokens {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct LossMask {
  std::vector<TurnTokens> turns;  // one for each span
  bool split_boundary = false;    // a token crosses the bound of a turn; the turn has the token
};

// Returns the tokens of `spans` of `text`; `ids` encodes the whole text. A stop token behind a
// span, or behind white space there, belongs to the turn, since a template may mark the content
// alone as the assistant's. White space and special tokens behind the turn's last stop token do
// not.
//
//   text    <s>[INST]Hi[/INST]Hello</s>[INST]Bye[/INST]
//   spans                     |-------|
//   ids     <s> [ INST ] Hi [ / INST ] Hello </s> [ INST ] ...
//   turns                              [begin    end)
LossMask FindTurnTokens(const Tokenizer& tokenizer, const std::string& text,
                        std::span<const ChatSpan> spans, const std::vector<std::int32_t>& ids);

// Returns labels that train only `turns` of `ids`.
std::vector<std::int32_t> LabelsOf(const std::vector<std::int32_t>& ids,
                                   std::span<const TurnTokens> turns);

// True when `id` ends generation: EOS, or a token that the model lists as such.
bool IsStopToken(const Tokenizer& tokenizer, std::int32_t id);

// Returns the number of equal tokens that `a` and `b` begin with.
std::int64_t CommonPrefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

}  // namespace qlora

#endif  // QLORA_PROMPT_LOSS_MASK_H_
