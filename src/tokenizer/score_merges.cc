#include "tokenizer/score_merges.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "tokenizer/bpe.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// The symbol of a part of a token, or -1 when it can be no symbol.
std::int32_t SymbolOf(std::string_view part, const PieceTable& ids) {
  if (const std::int32_t id = ids.Find(part); id >= 0) return id;
  const char* p = part.data();
  const char32_t c = NextCharacter(p);
  return p == part.data() + part.size() ? UnknownSymbol(c) : -1;
}

}  // namespace

ScoreMerges MergesOfScores(std::span<const std::string> texts, const PieceTable& ids,
                           std::span<const float> scores) {
  std::vector<std::int32_t> by_score(texts.size());
  std::iota(by_score.begin(), by_score.end(), 0);
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  ScoreMerges result;
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < by_score.size(); ++i) {
    const std::int32_t id = by_score[i];
    // Tokens of one score share a rank, so that the leftmost of their pairs merges first.
    if (i > 0 && scores[id] != scores[by_score[i - 1]]) ++rank;
    const std::string_view text = texts[id];
    for (std::int64_t cut = Utf8Length(text[0]); cut < std::ssize(text);
         cut += Utf8Length(text[cut])) {
      const std::int32_t left = SymbolOf(text.substr(0, cut), ids);
      if (left == -1) continue;
      const std::int32_t right = SymbolOf(text.substr(cut), ids);
      if (right == -1) continue;
      result.merges.push_back({left, right, id});
      result.ranks.push_back(rank);
    }
  }
  return result;
}

}  // namespace qlora
