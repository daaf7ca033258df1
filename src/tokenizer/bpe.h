// Byte-pair encoding of one word (Sennrich et al., arXiv:1508.07909), as Hugging Face tokenizers
// merges: of all adjacent pairs that have a merge, the pair of lowest rank is merged first, the
// leftmost on ties.
#ifndef QLORA_TOKENIZER_BPE_H_
#define QLORA_TOKENIZER_BPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/lookup_tables.h"

namespace qlora {

struct BpeConfig {
  std::string where;  // "dir/tokenizer.json: model", for errors
  // Text and id; with byte_level, a piece is written with the 256 byte characters.
  const std::vector<std::pair<std::string, std::int32_t>>* pieces = nullptr;
  // Ids of left, right and result, in order of rank. Left and right may be unknown characters (see
  // UnknownSymbol).
  std::vector<std::array<std::int32_t, 3>> merges;
  std::vector<std::uint32_t> ranks;  // of the merges, where some share one; empty: their places
  std::optional<std::string> unk_token;
  bool fuse_unk = false;         // neighbouring unknown characters give one unknown token
  bool byte_fallback = false;    // an unknown character becomes the pieces <0x..> of its bytes
  bool ignore_merges = false;    // a word that is a piece is that piece, whatever merges say
  bool keeps_line_ends = false;  // likewise, but for words of line feeds alone
  bool byte_level = false;       // words arrive as raw bytes, each of which means its character
  // As llama.cpp: unknown characters take part in merges. Those that are left become bytes
  // (byte_fallback) or nothing at the end.
  bool late_fallback = false;
};

// The symbol of a character without a piece, with late_fallback: less than -1.
inline std::int32_t UnknownSymbol(char32_t c) { return -2 - static_cast<std::int32_t>(c); }

// Buffers that Encode reuses; one per thread.
struct BpeScratch {
  struct Node {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;
    Merge merge;  // with the next node
  };
  std::vector<std::int32_t> symbols;
  std::vector<Merge> merges;
  std::vector<Node> nodes;
  std::vector<std::uint64_t> heap;

  // Gives back what a long word took, about 40 bytes for each of its symbols.
  void Trim() {
    constexpr std::size_t kKeptSymbols = std::size_t{1} << 14;
    if (symbols.capacity() > kKeptSymbols) *this = {};
  }
};

class Bpe {
 public:
  explicit Bpe(const BpeConfig& config);

  // Appends the ids of `word` (valid UTF-8, or any bytes with byte_level) to ids. Takes time
  // n log n in the length of the word.
  // Errors: InvalidInput when a character is unknown and unk_token is not in the vocabulary; with
  // late_fallback and byte_fallback, when the piece of one of its bytes is not.
  void Encode(std::string_view word, BpeScratch* scratch, std::vector<std::int32_t>* ids) const;

  // The id of a whole word, or -1.
  std::int32_t Find(std::string_view word) const { return pieces_.Find(word); }

 private:
  void AppendSymbols(std::string_view word, std::vector<std::int32_t>* symbols) const;
  bool AppendFallback(std::string_view character, std::vector<std::int32_t>* symbols) const;
  std::int32_t UnknownId() const;
  void AppendBytes(std::int32_t unknown_symbol, std::vector<std::int32_t>* ids) const;
  void MergeShort(BpeScratch* scratch) const;
  void MergeLong(BpeScratch* scratch) const;

  PieceTable pieces_;
  MergeTable merges_;
  std::array<std::int32_t, 256> single_;    // byte (or ASCII character) -> id, -1: unknown
  std::array<std::int32_t, 256> fallback_;  // <0x00> ... <0xFF>, -1: absent
  std::string where_;
  std::optional<std::string> unk_token_;
  std::int32_t unk_id_ = -1;
  bool fuse_unk_;
  bool byte_fallback_;
  bool ignore_merges_;
  bool keeps_line_ends_;
  bool byte_level_;
  bool late_fallback_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_BPE_H_
