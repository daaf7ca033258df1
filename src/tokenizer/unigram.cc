#include "tokenizer/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// How much worse than the worst piece an unknown character is (SentencePiece, kUnkPenalty).
constexpr double kUnknownPenalty = 10.0;

}  // namespace

Unigram::Unigram(const std::vector<std::pair<std::string, double>>& pieces,
                 std::optional<std::int32_t> unk_id, bool byte_fallback)
    : table_(pieces.size()), unk_id_(unk_id), byte_fallback_(byte_fallback) {
  double lowest = std::numeric_limits<double>::infinity();
  for (const auto& [text, score] : pieces) {
    const auto id = static_cast<std::int32_t>(scores_.size());
    trie_.Insert(text, id);
    table_.Insert(text, id);
    scores_.push_back(score);
    lowest = std::min(lowest, score);
  }
  unknown_score_ = lowest - kUnknownPenalty;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    fallback_[byte] = table_.Find(fmt::format("<0x{:02X}>", byte));
  }
}

std::int32_t Unigram::UnknownId() const {
  if (unk_id_) return *unk_id_;
  ThrowInvalidInput(
      "tokenizer.json: model.unk_id: is null, but the text has a character that is in no piece; "
      "expected the id of the unknown piece");
}

void Unigram::AppendPiece(std::string_view piece, std::vector<std::int32_t>* ids) const {
  if (const std::int32_t id = table_.Find(piece); id >= 0) {
    ids->push_back(id);
    return;
  }
  const auto fallback = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
  if (byte_fallback_ &&
      std::all_of(piece.begin(), piece.end(), [&](char c) { return fallback(c) >= 0; })) {
    for (const char c : piece) ids->push_back(fallback(c));
    return;
  }
  ids->push_back(UnknownId());
}

void Unigram::Encode(std::string_view word, UnigramScratch* scratch,
                     std::vector<std::int32_t>* ids) const {
  auto& nodes = scratch->nodes;
  nodes.assign(word.size() + 1, {0.0, 0, -1});
  const auto reach = [&](std::size_t begin, std::size_t end, double score, std::int32_t id) {
    UnigramScratch::Node& node = nodes[end];
    const double total = score + nodes[begin].score;
    if (node.begin < 0 || total > node.score) {
      node = {total, id >= 0 ? id : UnknownId(), static_cast<std::int64_t>(begin)};
    }
  };
  for (std::size_t begin = 0; begin < word.size();) {
    const auto length = static_cast<std::size_t>(Utf8Length(word[begin]));
    bool has_single = false;
    trie_.ForEachPrefix(word.substr(begin), [&](std::size_t size, std::int32_t id) {
      reach(begin, begin + size, scores_[id], id);
      has_single |= size == length;
    });
    if (!has_single) reach(begin, begin + length, unknown_score_, -1);
    begin += length;
  }
  // Back along the best path; neighbouring unknown pieces become one.
  auto& pieces = scratch->pieces;
  pieces.clear();
  bool after_unknown = false;
  for (std::size_t end = word.size(); end > 0;) {
    const UnigramScratch::Node& node = nodes[end];
    const auto begin = static_cast<std::size_t>(node.begin);
    const bool unknown = unk_id_ == node.id;
    if (unknown && after_unknown) {
      pieces.back().first = begin;
    } else {
      pieces.emplace_back(begin, end);
    }
    after_unknown = unknown;
    end = begin;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    AppendPiece(word.substr(piece->first, piece->second - piece->first), ids);
  }
}

}  // namespace qlora
