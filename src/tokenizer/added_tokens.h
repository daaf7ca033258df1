// Added tokens: texts that are cut out before the model sees anything.
#ifndef QLORA_TOKENIZER_ADDED_TOKENS_H_
#define QLORA_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/lookup_tables.h"

namespace qlora {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  bool special = false;
  bool normalized = false;   // is looked for in the normalized text, in its normalized form
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // counts only where no word character touches it
};

// Finds one set of added tokens in a text: at each place the longest, from left to right.
class AddedTokenMatcher {
 public:
  // False when the text is empty or another token has it.
  bool Add(std::string_view text, const AddedToken* token);
  bool IsEmpty() const { return tokens_.empty(); }

  // Calls on_text for each stretch between tokens (not empty; `begin` is its place in the text) and
  // on_token for each token, in order.
  void Split(std::string_view text,
             const std::function<void(std::string_view piece, std::size_t begin)>& on_text,
             const std::function<void(std::int32_t id)>& on_token) const;

 private:
  PrefixTrie trie_;
  std::array<bool, 256> first_ = {};
  std::vector<const AddedToken*> tokens_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_ADDED_TOKENS_H_
