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

  bool operator==(const AddedToken&) const = default;
};

// Finds one set of added tokens in a text: at each place the longest, from left to right.
class AddedTokenMatcher {
 public:
  // Looking at a place of a text takes as long as the longest token there, so texts of tokens have
  // a limit, far above the texts of real tokens.
  static constexpr std::int64_t kMaxTokenBytes = 1024;

  // False when the text is empty or another token has it.
  bool Add(std::string_view text, const AddedToken* token);

  // Calls on_text for each stretch between tokens (not empty; `begin` is its place in the text) and
  // on_token for each token, in order. Takes time linear in the length of the text.
  void Split(std::string_view text,
             const std::function<void(std::string_view piece, std::int64_t begin)>& on_text,
             const std::function<void(std::int32_t id)>& on_token) const;

 private:
  // The longest token at the front of `text` and its length, or null.
  const AddedToken* TokenAt(std::string_view text, std::int64_t* length) const;

  PrefixTrie trie_;  // of the tokens' texts; values are indices of tokens_
  std::array<bool, 256> first_ = {};
  std::vector<const AddedToken*> tokens_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_ADDED_TOKENS_H_
