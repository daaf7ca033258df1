#include "data/sample_check.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/check.h"
#include "prompt/loss_mask.h"

namespace qlora {
namespace {

// An id beyond the embedding would read another tensor's memory.
void CheckInVocabulary(std::int32_t id, std::int64_t position, std::int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return;
  ThrowInvalidInput(
      "token {} at position {} is outside of the vocabulary of {} tokens; the data or the "
      "tokenizer belongs to another model",
      id, position, vocab_size);
}

// Returns the tokens of a turn without white space at the end, which templates put behind the last
// token.
std::span<const std::int32_t> TrimSpaces(std::span<const std::int32_t> turn,
                                         const Tokenizer& tokenizer) {
  const auto is_space = [&](std::int32_t id) {
    const std::string text = tokenizer.Decode({&id, 1}, /*skip_special_tokens=*/false);
    return text.find_first_not_of(" \t\r\n") == std::string::npos;
  };
  while (!turn.empty() && is_space(turn.back())) turn = turn.first(turn.size() - 1);
  return turn;
}

}  // namespace

void CheckSample(const Sample& sample, const Tokenizer& tokenizer, std::int64_t vocab_size,
                 SampleNotes& notes) {
  for (std::int64_t t = 0; t < std::ssize(sample.ids); ++t) {
    const std::int32_t label = sample.labels[t];
    CheckInVocabulary(sample.ids[t], t, vocab_size);
    if (label == kIgnoreLabel) continue;
    CheckInVocabulary(label, t, vocab_size);
    notes.foreign_labels += label != sample.ids[t];
  }
  // The usual cause is a template or text that holds BOS and a tokenizer that adds another.
  const std::optional<std::int32_t> bos = tokenizer.bos_id();
  const bool begins = bos.has_value() && !sample.ids.empty() && sample.ids[0] == *bos;
  if (begins && sample.ids.size() > 1 && sample.ids[1] == *bos) {
    ThrowInvalidInput(
        "the sample begins with BOS twice ({} {}); the tokenizer adds one, so take it out of the "
        "text or the template",
        *bos, *bos);
  }
  // A remark, not an error: prepared ids may leave BOS out on purpose.
  notes.without_bos = tokenizer.adds_bos() && !begins;
}

void CheckAnswerBegins(const Sample& sample, const Tokenizer& tokenizer) {
  const std::optional<std::int32_t> bos = tokenizer.bos_id();
  if (!bos || IsStopToken(tokenizer, *bos)) return;
  // What nothing comes before is the start of a text.
  for (std::int64_t t = 1; t < std::ssize(sample.ids); ++t) {
    if (sample.labels[t] == kIgnoreLabel) continue;
    if (sample.ids[t] != *bos) return;
    ThrowInvalidInput(
        "the answer begins with BOS ({}), which belongs at the start of the prompt alone; take it "
        "out of the tokens of the answer",
        *bos);
  }
}

// One label that equals the next token may be chance; two or more, and no others, are not. Labels
// that fit both readings, as in a run of equal tokens, count as unshifted.
void CheckNotShifted(const Sample& sample) {
  bool same = true;
  bool shifted = true;
  std::int64_t trained = 0;
  for (std::int64_t t = 0; t + 1 < std::ssize(sample.ids); ++t) {
    if (sample.labels[t] == kIgnoreLabel) continue;
    ++trained;
    same = same && sample.labels[t] == sample.ids[t];
    shifted = shifted && sample.labels[t] == sample.ids[t + 1];
  }
  if (trained < 2 || !shifted || same) return;
  ThrowInvalidInput(
      "labels[t] equals input_ids[t + 1]: the labels are shifted already; write labels[t] = "
      "input_ids[t], the trainer shifts them");
}

bool TrainsStop(const Sample& sample, const Tokenizer& tokenizer) {
  const auto last = std::find_if(sample.labels.rbegin(), sample.labels.rend(),
                                 [](std::int32_t label) { return label != kIgnoreLabel; });
  return last != sample.labels.rend() && IsStopToken(tokenizer, *last);
}

// A special token that is not listed as EOS ends turns of many templates (<|im_end|>): the model
// learns to write it, and the user must list it.
TurnEnd EndOf(std::span<const std::int32_t> turn, const Tokenizer& tokenizer) {
  turn = TrimSpaces(turn, tokenizer);
  if (turn.empty()) return TurnEnd::kNothing;
  if (IsStopToken(tokenizer, turn.back())) return TurnEnd::kStop;
  return tokenizer.IsSpecial(turn.back()) ? TurnEnd::kSpecial : TurnEnd::kText;
}

void ThrowOpenTurn(std::span<const std::int32_t> turn, std::int64_t message,
                   const Tokenizer& tokenizer) {
  const std::int32_t last = TrimSpaces(turn, tokenizer).back();
  ThrowInvalidInput(
      "messages[{}]: the assistant's turn does not end in a token that ends generation, so that "
      "the model could not learn to stop: its last trained token is {} ('{}'); the chat template "
      "must close the turn with EOS or an end-of-turn token of the vocabulary, as the built-in "
      "template 'plain' does",
      message, last, tokenizer.TokenText(last));
}

}  // namespace qlora
