#include "tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// Up to here, looking through all pairs for the lowest rank beats keeping a heap.
constexpr std::size_t kShortWord = 48;

constexpr bool StandsForItself(unsigned char byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr auto kByteCharacters = [] {
  std::array<char32_t, 256> table = {};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = StandsForItself(static_cast<unsigned char>(byte));
    table[byte] = itself ? static_cast<char32_t>(byte) : next++;
  }
  return table;
}();

constexpr char32_t kByteCharacterLimit = 0x144;
constexpr auto kCharacterBytes = [] {
  std::array<std::int16_t, kByteCharacterLimit> table = {};
  for (std::int16_t& byte : table) byte = -1;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    table[kByteCharacters[byte]] = static_cast<std::int16_t>(byte);
  }
  return table;
}();

}  // namespace

char32_t ByteCharacter(unsigned char byte) { return kByteCharacters[byte]; }

std::optional<std::string> BytesOfByteCharacters(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const char* p = text.data(); p < text.data() + text.size();) {
    const char32_t c = NextCharacter(p);
    if (c >= kByteCharacterLimit || kCharacterBytes[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kCharacterBytes[c]));
  }
  return bytes;
}

Bpe::Bpe(const BpeConfig& config)
    : pieces_(config.pieces->size()),
      merges_(config.merges.size()),
      unk_token_(config.unk_token),
      fuse_unk_(config.fuse_unk),
      byte_fallback_(config.byte_fallback),
      ignore_merges_(config.ignore_merges),
      byte_level_(config.byte_level) {
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
  std::uint32_t rank = 0;
  for (const auto& [left, right, id] : config.merges) merges_.Insert(left, right, {rank++, id});
}

std::int32_t Bpe::UnknownId() const {
  if (unk_id_ >= 0) return unk_id_;
  ThrowInvalidInput(
      "tokenizer.json: model.unk_token: '{}' is not in model.vocab, but the text has a character "
      "that needs it; expected a vocabulary with this piece",
      *unk_token_);
}

// The order of ids around unknown characters is that of Hugging Face: an unknown token waits until
// the next known character, byte-fallback tokens overtake it.
void Bpe::AppendSymbols(std::string_view word, std::vector<std::int32_t>* symbols) const {
  bool waiting = false;
  const char* const end = word.data() + word.size();
  std::string character;
  for (const char* p = word.data(); p < end;) {
    const char* const start = p;
    const auto lead = static_cast<unsigned char>(*p);
    std::int32_t id;
    if (byte_level_ || lead < 0x80) {
      ++p;
      id = single_[lead];
    } else {
      p += Utf8Length(*p);
      id = pieces_.Find({start, static_cast<std::size_t>(p - start)});
    }
    if (id >= 0) {
      if (waiting) symbols->push_back(UnknownId());
      waiting = false;
      symbols->push_back(id);
      continue;
    }
    if (byte_fallback_) {
      character.assign(start, p);
      if (byte_level_) {
        character.clear();
        AppendUtf8(ByteCharacter(lead), &character);
      }
      const auto fallback = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
      if (std::all_of(character.begin(), character.end(),
                      [&](char c) { return fallback(c) >= 0; })) {
        for (const char c : character) symbols->push_back(fallback(c));
        continue;
      }
    }
    if (!unk_token_) continue;
    if (waiting && !fuse_unk_) symbols->push_back(UnknownId());
    waiting = true;
  }
  if (waiting) symbols->push_back(UnknownId());
}

void Bpe::Encode(std::string_view word, BpeScratch* scratch, std::vector<std::int32_t>* ids) const {
  if (ignore_merges_) {
    if (const std::int32_t id = pieces_.Find(word); id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  scratch->symbols.clear();
  AppendSymbols(word, &scratch->symbols);
  if (scratch->symbols.size() <= kShortWord) {
    MergeShort(scratch);
  } else {
    MergeLong(scratch);
  }
  ids->insert(ids->end(), scratch->symbols.begin(), scratch->symbols.end());
}

void Bpe::MergeShort(BpeScratch* scratch) const {
  std::vector<std::int32_t>& symbols = scratch->symbols;
  std::vector<Merge>& merges = scratch->merges;  // merges[i]: symbols i and i + 1
  std::size_t n = symbols.size();
  if (n < 2) return;
  merges.resize(n - 1);
  for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = merges_.Find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == Merge::kNone) break;
    symbols[best] = merges[best].id;
    std::move(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(n),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::move(merges.begin() + static_cast<std::ptrdiff_t>(best) + 1,
              merges.begin() + static_cast<std::ptrdiff_t>(n) - 1,
              merges.begin() + static_cast<std::ptrdiff_t>(best));
    --n;
    if (best + 1 < n) merges[best] = merges_.Find(symbols[best], symbols[best + 1]);
    if (best > 0) merges[best - 1] = merges_.Find(symbols[best - 1], symbols[best]);
  }
  symbols.resize(n);
}

void Bpe::MergeLong(BpeScratch* scratch) const {
  using Node = BpeScratch::Node;
  std::vector<std::int32_t>& symbols = scratch->symbols;
  if (symbols.size() > std::numeric_limits<std::int32_t>::max()) {
    ThrowInvalidInput("cannot tokenize a word of {} characters; expected at most 2^31",
                      symbols.size());
  }
  const auto n = static_cast<std::int32_t>(symbols.size());
  std::vector<Node>& nodes = scratch->nodes;
  std::vector<std::uint64_t>& heap = scratch->heap;  // rank << 32 | left node; least first
  nodes.resize(symbols.size());
  heap.clear();
  const auto at = [&](std::int32_t i) -> Node& { return nodes[i]; };
  const auto find = [&](std::int32_t i) {
    Node& node = at(i);
    node.merge = node.next < n ? merges_.Find(node.id, at(node.next).id) : Merge{};
    if (node.merge.rank == Merge::kNone) return false;
    heap.push_back(std::uint64_t{node.merge.rank} << 32 | static_cast<std::uint32_t>(i));
    return true;
  };
  for (std::int32_t i = 0; i < n; ++i) {
    at(i) = {symbols[i], i - 1, i + 1, {}};
  }
  for (std::int32_t i = 0; i < n; ++i) find(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<std::int32_t>(top & 0xFFFFFFFF);
    Node& node = at(i);
    if (node.merge.rank != top >> 32) continue;  // one of its two symbols has merged since
    const std::int32_t right = node.next;
    node.id = node.merge.id;
    node.next = at(right).next;
    at(right).merge = {};
    if (node.next < n) at(node.next).previous = i;
    if (find(i)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (node.previous >= 0 && find(node.previous)) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  symbols.clear();
  for (std::int32_t i = 0; i < n; i = at(i).next) symbols.push_back(at(i).id);
}

}  // namespace qlora
