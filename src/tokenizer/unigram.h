// Unigram language model segmentation (Kudo, arXiv:1804.10959): the pieces with the highest sum of
// log-probabilities, as Hugging Face tokenizers finds them.
#ifndef QLORA_TOKENIZER_UNIGRAM_H_
#define QLORA_TOKENIZER_UNIGRAM_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/lookup_tables.h"

namespace qlora {

// Buffers that Encode reuses; one per thread.
struct UnigramScratch {
  struct Node {  // the best way to reach a byte of the word
    double score;
    std::int32_t id;     // of the last piece
    std::int64_t begin;  // of the last piece, -1: not reached yet
  };
  std::vector<Node> nodes;
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
};

class Unigram {
 public:
  // The index of a piece is its id. Pieces differ and are not empty; unk_id is one of them.
  Unigram(const std::vector<std::pair<std::string, double>>& pieces,
          std::optional<std::int32_t> unk_id, bool byte_fallback);

  // Appends the ids of `word` (valid UTF-8) to ids. Time linear in its length.
  // Errors: InvalidInput when a character is in no piece and there is no unk_id.
  void Encode(std::string_view word, UnigramScratch* scratch, std::vector<std::int32_t>* ids) const;

 private:
  void AppendPiece(std::string_view piece, std::vector<std::int32_t>* ids) const;
  std::int32_t UnknownId() const;

  PrefixTrie trie_;
  PieceTable table_;
  std::vector<double> scores_;
  double unknown_score_;
  std::optional<std::int32_t> unk_id_;
  bool byte_fallback_;
  std::array<std::int32_t, 256> fallback_;  // <0x00> ... <0xFF>, -1: absent
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_UNIGRAM_H_
