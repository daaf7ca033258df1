// SentencePiece's merging by scores, as llama.cpp does it, in the form of merges of ids (bpe.h).
#ifndef QLORA_TOKENIZER_SCORE_MERGES_H_
#define QLORA_TOKENIZER_SCORE_MERGES_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/lookup_tables.h"

namespace qlora {

struct ScoreMerges {
  std::vector<std::array<std::int32_t, 3>> merges;  // ids of left, right and result
  std::vector<std::uint32_t> ranks;                 // of each merge, ascending
};

// Any two neighbours merge whose texts together are a token; of all such pairs the one whose token
// has the highest score is merged first, the leftmost on ties. Every token of several characters
// therefore gives a merge for each place where it can be cut into tokens or single characters;
// characters without a token are UnknownSymbol (bpe.h).
// texts: index = id, each of at most kMaxScoredBytes bytes; ids: of the texts; scores: of each id.
ScoreMerges MergesOfScores(std::span<const std::string> texts, const PieceTable& ids,
                           std::span<const float> scores);

// The time for one token grows with the square of its length; the bounds are on that length and on
// the sum of the squares. 256,000 tokens of 16 bytes make a sixteenth of that sum.
inline constexpr std::int64_t kMaxScoredBytes = 1024;
inline constexpr std::int64_t kMaxScoredWork = std::int64_t{1} << 30;

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SCORE_MERGES_H_
