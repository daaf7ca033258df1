#include "prompt/loss_mask.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/text.h"

namespace qlora {
namespace {

using Ids = std::vector<std::int32_t>;

// Returns the number of tokens of `text` before each of the ascending byte offsets `bytes`.
//
// The pieces between the offsets are encoded one by one. Mostly they give the same tokens as the
// whole text, and the count of tokens so far is exact. Otherwise (many tokenizers put a space
// before the first word of a text) the text before each offset is encoded as a whole: the tokens
// that it shares with the whole text come before the offset, and one token crosses the offset if
// the text has a token that is not shared.
std::vector<std::int64_t> TokensBefore(const Tokenizer& tokenizer, std::string_view text,
                                       std::span<const std::size_t> bytes, const Ids& ids,
                                       bool& split) {
  std::vector<std::int64_t> counts;
  Ids pieces;
  std::size_t last = 0;
  const auto encode_to = [&](std::size_t end) {
    const Ids piece = tokenizer.Encode(text.substr(last, end - last), /*add_special_tokens=*/false);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
    last = end;
  };
  for (const std::size_t byte : bytes) {
    encode_to(byte);
    counts.push_back(std::ssize(pieces));
  }
  encode_to(text.size());
  if (pieces == ids) return counts;

  for (std::size_t b = 0; b < bytes.size(); ++b) {
    const Ids before = tokenizer.Encode(text.substr(0, bytes[b]), /*add_special_tokens=*/false);
    counts[b] = CommonPrefix(before, ids);
    split = split || counts[b] != std::ssize(before);
  }
  return counts;
}

// Moves the end of a turn behind a stop token that follows, perhaps behind white space, unless the
// turn ends in one already.
void TakeStopToken(const Tokenizer& tokenizer, const Ids& ids, TurnTokens& turn) {
  if (turn.begin == turn.end) return;
  const std::int32_t last = ids[turn.end - 1];
  if (IsStopToken(tokenizer, last) || tokenizer.IsSpecial(last)) return;
  for (std::int64_t t = turn.end; t < std::ssize(ids); ++t) {
    if (IsStopToken(tokenizer, ids[t])) {
      turn.end = t + 1;
      return;
    }
    const std::string text = tokenizer.Decode({&ids[t], 1}, /*skip_special_tokens=*/false);
    if (!Trim(text).empty()) return;
  }
}

// Ends a turn behind its last stop token if only white space and special tokens follow there, of
// several in a row behind the first: the model never writes what follows, because generation has
// ended.
void CutBehindStop(const Tokenizer& tokenizer, const Ids& ids, TurnTokens& turn) {
  bool found = false;
  for (std::int64_t end = turn.end; end > turn.begin; --end) {
    const std::int32_t id = ids[end - 1];
    if (IsStopToken(tokenizer, id)) {
      turn.end = end;
      found = true;
      continue;
    }
    if (!Trim(tokenizer.Decode({&id, 1}, /*skip_special_tokens=*/!found)).empty()) return;
  }
}

}  // namespace

LossMask FindTurnTokens(const Tokenizer& tokenizer, const std::string& text,
                        std::span<const ChatSpan> spans, const Ids& ids) {
  std::vector<std::size_t> bytes;
  for (const ChatSpan& span : spans) bytes.insert(bytes.end(), {span.begin, span.end});
  LossMask mask;
  const auto bounds = TokensBefore(tokenizer, text, bytes, ids, mask.split_boundary);
  for (std::size_t b = 0; b < bounds.size(); b += 2) {
    TurnTokens& turn = mask.turns.emplace_back(TurnTokens{bounds[b], bounds[b + 1]});
    TakeStopToken(tokenizer, ids, turn);
    CutBehindStop(tokenizer, ids, turn);
  }
  return mask;
}

std::vector<std::int32_t> LabelsOf(const Ids& ids, std::span<const TurnTokens> turns) {
  Ids labels(ids.size(), kIgnoreLabel);
  for (const TurnTokens& turn : turns) {
    std::copy(ids.begin() + turn.begin, ids.begin() + turn.end, labels.begin() + turn.begin);
  }
  return labels;
}

bool IsStopToken(const Tokenizer& tokenizer, std::int32_t id) {
  const Ids& listed = tokenizer.eos_ids();
  return tokenizer.eos_id() == id || std::find(listed.begin(), listed.end(), id) != listed.end();
}

std::int64_t CommonPrefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace qlora
