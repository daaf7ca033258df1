// A word becomes symbols, one a character (or byte); then pairs of neighbours merge:
//
//     symbols          l o w e r       ranks of the pairs: lo 7, ow 3, we -, er 5
//     ow has the least l ow e r        now: l|ow 9, ow|e -, er 5
//     then er          l ow er         now: l|ow 9, ow|er 12
//     then l|ow        low er          now: low|er -, and nothing is left to merge
//
// Only the pairs to the left and right of a merge change. Short words keep the ranks of their pairs
// in an array and look through it for the least; long ones keep a heap of (rank, place).
#include "tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"
#include "tokenizer/byte_characters.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// Up to this many symbols, looking through all pairs is faster than a heap.
constexpr std::int64_t kShortWord = 48;

}  // namespace

Bpe::Bpe(const BpeConfig& config)
    : pieces_(config.pieces->size()),
      merges_(config.merges.size()),
      where_(config.where),
      unk_token_(config.unk_token),
      fuse_unk_(config.fuse_unk),
      byte_fallback_(config.byte_fallback),
      ignore_merges_(config.ignore_merges),
      keeps_line_ends_(config.keeps_line_ends),
      byte_level_(config.byte_level),
      late_fallback_(config.late_fallback) {
  fallback_.fill(-1);
  PieceTable bytes_of(byte_fallback_ ? 256 : 0);
  if (byte_fallback_) {
    for (int byte = 0; byte < 256; ++byte) bytes_of.Insert(fmt::format("<0x{:02X}>", byte), byte);
  }
  for (const auto& [text, id] : *config.pieces) {
    if (unk_token_ == text) unk_id_ = id;
    if (const std::int32_t byte = byte_fallback_ ? bytes_of.Find(text) : -1; byte >= 0) {
      fallback_[byte] = id;
    }
    if (!byte_level_) {
      pieces_.Insert(text, id);
    } else if (const auto bytes = BytesOfByteCharacters(text)) {
      pieces_.Insert(*bytes, id);
    }
  }
  const int singles = byte_level_ ? 256 : 128;
  single_.fill(-1);
  for (int byte = 0; byte < singles; ++byte) {
    const char c = static_cast<char>(byte);
    single_[byte] = pieces_.Find({&c, 1});
  }
  for (std::int64_t i = 0; i < std::ssize(config.merges); ++i) {
    const auto& [left, right, id] = config.merges[i];
    const auto place = static_cast<std::uint32_t>(i);
    merges_.Insert(left, right, {config.ranks.empty() ? place : config.ranks[i], id});
  }
}

std::int32_t Bpe::UnknownId() const {
  if (unk_id_ >= 0) return unk_id_;
  ThrowInvalidInput(
      "{}.unk_token: '{}' is not in model.vocab, but the text has a character that needs it; "
      "expected a vocabulary with this piece",
      where_, *unk_token_);
}

// Appends the pieces <0x..> of the character's bytes; false, and no change, when one is absent.
bool Bpe::AppendFallback(std::string_view character, std::vector<std::int32_t>* symbols) const {
  std::string mapped;
  if (byte_level_) {  // fallback pieces belong to the byte's character, not to the byte
    AppendUtf8(ByteCharacter(static_cast<unsigned char>(character[0])), &mapped);
    character = mapped;
  }
  const auto fallback = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
  const bool complete = std::ranges::all_of(character, [&](char c) { return fallback(c) >= 0; });
  if (!complete) return false;
  for (const char c : character) symbols->push_back(fallback(c));
  return true;
}

// The pieces of the bytes of an unknown character that no merge has taken.
void Bpe::AppendBytes(std::int32_t unknown_symbol, std::vector<std::int32_t>* ids) const {
  if (!byte_fallback_) return;
  std::string character;
  AppendUtf8(static_cast<char32_t>(-2 - unknown_symbol), &character);
  for (const char c : character) {
    const auto byte = static_cast<unsigned char>(c);
    if (fallback_[byte] < 0) {
      ThrowInvalidInput(
          "{}: has no token for the character '{}' and none for its byte: <0x{:02X}>; expected the "
          "256 byte tokens <0x00> ... <0xFF>",
          where_, character, byte);
    }
    ids->push_back(fallback_[byte]);
  }
}

// Ids around unknown characters have the order of Hugging Face: an unknown token waits until the
// next known character, byte-fallback tokens overtake it.
void Bpe::AppendSymbols(std::string_view word, std::vector<std::int32_t>* symbols) const {
  bool waiting = false;
  const char* const end = word.data() + word.size();
  for (const char* p = word.data(); p < end;) {
    const bool one_byte = byte_level_ || static_cast<unsigned char>(*p) < 0x80;
    const std::string_view character(p, one_byte ? 1 : Utf8Length(*p));
    p += character.size();
    const std::int32_t id =
        one_byte ? single_[static_cast<unsigned char>(character[0])] : pieces_.Find(character);
    if (id >= 0) {
      if (waiting) symbols->push_back(UnknownId());
      waiting = false;
      symbols->push_back(id);
      continue;
    }
    if (late_fallback_) {
      const char* at = character.data();
      symbols->push_back(
          UnknownSymbol(byte_level_ ? static_cast<unsigned char>(*at) : NextCharacter(at)));
      continue;
    }
    if (byte_fallback_ && AppendFallback(character, symbols)) continue;
    if (!unk_token_) continue;  // without an unknown token, the character is left out
    if (waiting && !fuse_unk_) symbols->push_back(UnknownId());
    waiting = true;
  }
  if (waiting) symbols->push_back(UnknownId());
}

void Bpe::Encode(std::string_view word, BpeScratch* scratch, std::vector<std::int32_t>* ids) const {
  const bool whole = ignore_merges_ ||
                     (keeps_line_ends_ && word.find_first_not_of('\n') == std::string_view::npos);
  if (whole) {
    if (const std::int32_t id = pieces_.Find(word); id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  scratch->symbols.clear();
  AppendSymbols(word, &scratch->symbols);
  if (std::ssize(scratch->symbols) <= kShortWord) {
    MergeShort(scratch);
  } else {
    MergeLong(scratch);
  }
  if (!late_fallback_) {
    ids->insert(ids->end(), scratch->symbols.begin(), scratch->symbols.end());
    return;
  }
  for (const std::int32_t symbol : scratch->symbols) {
    if (symbol >= 0) {
      ids->push_back(symbol);
    } else {
      AppendBytes(symbol, ids);
    }
  }
}

// Time n^2, but of a few nanoseconds each, without allocation.
void Bpe::MergeShort(BpeScratch* scratch) const {
  std::vector<std::int32_t>& symbols = scratch->symbols;
  std::vector<Merge>& merges = scratch->merges;  // merges[i]: symbols i and i + 1
  std::int64_t n = std::ssize(symbols);
  if (n < 2) return;
  merges.resize(n - 1);
  for (std::int64_t i = 0; i + 1 < n; ++i) merges[i] = merges_.Find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    std::int64_t best = 0;
    for (std::int64_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == Merge::kNone) break;
    symbols[best] = merges[best].id;
    // Symbol best + 1 and the pair at best are gone: the symbols behind them move up.
    std::move(symbols.begin() + best + 2, symbols.begin() + n, symbols.begin() + best + 1);
    std::move(merges.begin() + best + 1, merges.begin() + n - 1, merges.begin() + best);
    --n;
    if (best + 1 < n) merges[best] = merges_.Find(symbols[best], symbols[best + 1]);
    if (best > 0) merges[best - 1] = merges_.Find(symbols[best - 1], symbols[best]);
  }
  symbols.resize(n);
}

// The symbols are a doubly linked list in an array; the heap holds rank << 32 | index of the left
// node, so that its least entry is the leftmost pair of lowest rank. A merge changes the ranks of
// two pairs, whose old entries stay in the heap: an entry counts only if its node still has the
// same rank.
void Bpe::MergeLong(BpeScratch* scratch) const {
  using Node = BpeScratch::Node;
  std::vector<std::int32_t>& symbols = scratch->symbols;
  if (std::ssize(symbols) > std::numeric_limits<std::int32_t>::max()) {
    ThrowInvalidInput("cannot tokenize a word of {} characters; expected at most 2^31",
                      symbols.size());
  }
  const auto n = static_cast<std::int32_t>(symbols.size());
  std::vector<Node>& nodes = scratch->nodes;
  std::vector<std::uint64_t>& heap = scratch->heap;
  nodes.resize(n);
  heap.clear();
  // Looks up the merge of node i with its next, and pushes it if there is one.
  const auto find = [&](std::int32_t i) {
    Node& node = nodes[i];
    node.merge = node.next < n ? merges_.Find(node.id, nodes[node.next].id) : Merge{};
    if (node.merge.rank == Merge::kNone) return false;
    heap.push_back(std::uint64_t{node.merge.rank} << 32 | static_cast<std::uint32_t>(i));
    return true;
  };
  for (std::int32_t i = 0; i < n; ++i) nodes[i] = {symbols[i], i - 1, i + 1, {}};
  for (std::int32_t i = 0; i < n; ++i) find(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<std::int32_t>(top & 0xFFFFFFFF);
    Node& node = nodes[i];
    if (node.merge.rank != top >> 32) continue;  // one of its two symbols has merged since
    const std::int32_t right = node.next;
    node.id = node.merge.id;
    node.next = nodes[right].next;
    nodes[right].merge = {};
    if (node.next < n) nodes[node.next].previous = i;
    if (find(i)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (node.previous >= 0 && find(node.previous)) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  symbols.clear();
  for (std::int32_t i = 0; i < n; i = nodes[i].next) symbols.push_back(nodes[i].id);
}

}  // namespace qlora
