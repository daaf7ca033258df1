// The pre-tokenizers that GGUF files name. A file stores no regular expression: tokenizer.ggml.pre
// names a rule that every reader knows, and the name also decides three defaults.
#ifndef QLORA_TOKENIZER_GGUF_GGUF_PRE_TOKENIZERS_H_
#define QLORA_TOKENIZER_GGUF_GGUF_PRE_TOKENIZERS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

struct GgufPreTokenizer {
  // Regular expressions, applied one after another, each to the pieces that those before it have
  // cut.
  std::vector<std::string> splits;
  // The one expression of the tokenizer.json of models with this name, where it is known; "". It
  // also tells the case of letters outside of ASCII.
  std::string trained;
  bool ignore_merges = false;  // a word that is a token is that token
  bool adds_bos = false;       // where tokenizer.ggml.add_bos_token is missing
  bool has_bos = true;         // false: none where tokenizer.ggml.bos_token_id is missing
};

// The rule of that name, if it is known here; "" names the rule of files without a name.
std::optional<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name);

// The first name of a rule with these expressions; "" without one.
std::string_view GgufPreTokenizerOfSplits(const std::vector<std::string>& splits,
                                          bool ignore_merges);

// "default, llama-bpe, ...": all names, for errors.
std::string GgufPreTokenizerNames();

}  // namespace qlora

#endif  // QLORA_TOKENIZER_GGUF_GGUF_PRE_TOKENIZERS_H_
