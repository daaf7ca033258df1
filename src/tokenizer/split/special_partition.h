// Special tokens in a text, found as llama.cpp finds them: not from left to right, as Hugging Face
// does (added_tokens.h), but token by token, those of the longest text first.
#ifndef QLORA_TOKENIZER_SPLIT_SPECIAL_PARTITION_H_
#define QLORA_TOKENIZER_SPLIT_SPECIAL_PARTITION_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tokenizer/lookup_tables.h"

namespace qlora {

class SpecialPartition {
 public:
  struct Token {
    std::string_view text;  // not empty, and no other token's; must outlive the partition
    std::int32_t id = -1;
    bool takes_space_after = false;  // the ASCII white space behind it
  };

  // tokens: in any order; of those with texts of one length, the earlier is looked for first.
  explicit SpecialPartition(std::vector<Token> tokens);

  // Calls on_text for each stretch between tokens (not empty) and on_token for each token, in the
  // order of the text. Takes time n log n in the number of places where a token might be.
  void Split(std::string_view text, const std::function<void(std::string_view piece)>& on_text,
             const std::function<void(std::int32_t id)>& on_token) const;

 private:
  // A token that may be at a place of the text.
  struct Candidate {
    std::int32_t token = -1;  // index; -1: none
    std::int64_t begin = 0;
  };
  // The longest token at `begin` that ends before `end`.
  Candidate LongestAt(std::string_view text, std::int64_t begin, std::int64_t end) const;
  std::vector<Candidate> AllCandidates(std::string_view text) const;

  std::vector<Token> tokens_;  // longest first
  PrefixTrie trie_;            // of their texts; values are indices of tokens_
  std::array<bool, 256> first_ = {};
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SPLIT_SPECIAL_PARTITION_H_
