// llama.cpp looks for each token in all that is left of the text, from left to right, before it
// looks for the next:
//
//     tokens         "<|a|>x", "|>x<|", "<|b|>"      by length
//     text           "<|a|>x<|b|>"
//     "<|a|>x"        ------            taken
//     "|>x<|"            -----          overlaps what is taken
//     "<|b|>"               -----       taken
//
// The same comes of a queue of places, each with the longest token there, of which the longest and
// then the leftmost is taken out first. Where it overlaps what was taken before, the place goes
// back with its next shorter token that does not.
#include "tokenizer/split/special_partition.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

namespace qlora {
namespace {

bool IsAsciiSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

SpecialPartition::SpecialPartition(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const Token& a, const Token& b) { return a.text.size() > b.text.size(); });
  for (std::int64_t i = 0; i < std::ssize(tokens_); ++i) {
    trie_.Insert(tokens_[i].text, static_cast<std::int32_t>(i));
    first_[static_cast<unsigned char>(tokens_[i].text[0])] = true;
  }
}

SpecialPartition::Candidate SpecialPartition::LongestAt(std::string_view text, std::int64_t begin,
                                                        std::int64_t end) const {
  Candidate candidate{-1, begin};
  trie_.ForEachPrefix(text.substr(begin, end - begin),
                      [&](std::int64_t, std::int32_t index) { candidate.token = index; });
  return candidate;
}

std::vector<SpecialPartition::Candidate> SpecialPartition::AllCandidates(
    std::string_view text) const {
  std::vector<Candidate> candidates;
  for (std::int64_t at = 0; at < std::ssize(text); ++at) {
    if (!first_[static_cast<unsigned char>(text[at])]) continue;
    const Candidate candidate = LongestAt(text, at, std::ssize(text));
    if (candidate.token >= 0) candidates.push_back(candidate);
  }
  return candidates;
}

void SpecialPartition::Split(std::string_view text,
                             const std::function<void(std::string_view piece)>& on_text,
                             const std::function<void(std::int32_t id)>& on_token) const {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return std::tie(a.token, a.begin) > std::tie(b.token, b.begin);
  };
  std::priority_queue queue(later, AllCandidates(text));
  struct Taken {
    std::int64_t end;  // of the token and the space that it takes
    std::int32_t id;
  };
  std::map<std::int64_t, Taken> taken;  // by where they begin
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    const Token& token = tokens_[candidate.token];
    const auto next = taken.upper_bound(candidate.begin);
    if (next != taken.begin() && std::prev(next)->second.end > candidate.begin) continue;
    const std::int64_t limit = next == taken.end() ? std::ssize(text) : next->first;
    std::int64_t end = candidate.begin + std::ssize(token.text);
    if (end > limit) {
      const Candidate shorter = LongestAt(text, candidate.begin, limit);
      if (shorter.token >= 0) queue.push(shorter);
      continue;
    }
    while (token.takes_space_after && end < limit && IsAsciiSpace(text[end])) ++end;
    taken.emplace_hint(next, candidate.begin, Taken{end, token.id});
  }
  std::int64_t done = 0;
  for (const auto& [begin, token] : taken) {
    if (begin > done) on_text(text.substr(done, begin - done));
    on_token(token.id);
    done = token.end;
  }
  if (done < std::ssize(text)) on_text(text.substr(done));
}

}  // namespace qlora
