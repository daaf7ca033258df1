// Which tokens are BOS, EOS, PAD and UNK, and which end a text, as the files of a model say.
#ifndef QLORA_TOKENIZER_SPECIAL_TOKENS_H_
#define QLORA_TOKENIZER_SPECIAL_TOKENS_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/added_tokens.h"

namespace qlora {

struct TokenRoles {
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  std::optional<std::int32_t> pad;
  std::optional<std::int32_t> unk;
  std::vector<std::int32_t> all_eos;  // every token that ends a text, ascending
  // Those of sep_token, cls_token and mask_token that are there, for chat templates.
  std::vector<std::pair<std::string, std::int32_t>> others;

  bool operator==(const TokenRoles&) const = default;
};

// adapter_dir: may be empty; its tokenizer_config.json and special_tokens_map.json take the place
// of the model's. id_of: the id of a token's text, if it has one. Errors: InvalidInput, with file
// and key, for malformed files and for a BOS or EOS token that does not exist. (A PAD or UNK token
// that does not exist counts as none.)
TokenRoles ReadTokenRoles(
    const std::filesystem::path& model_dir, const std::filesystem::path& adapter_dir,
    const std::function<std::optional<std::int32_t>(std::string_view)>& id_of);

// A token that a file other than tokenizer.json declares.
struct DeclaredToken {
  AddedToken token;   // id -1: the file names the text alone
  std::string where;  // file and key
};
// Returns the tokens that transformers adds where tokenizer.json does not list them:
// added_tokens_decoder of tokenizer_config.json or, without it, added_tokens.json, by ascending
// ids; then the special tokens that tokenizer_config.json or special_tokens_map.json names.
std::vector<DeclaredToken> ReadDeclaredTokens(const std::filesystem::path& model_dir,
                                              const std::filesystem::path& adapter_dir);

// What tokenizer_config.json says about tokens around a text. transformers builds the
// post-processor anew where the file has one of the keys add_bos_token and add_eos_token; the other
// then counts as false.
struct AddedEnds {
  bool bos = false;
  bool eos = false;
};
std::optional<AddedEnds> ReadAddedEnds(const std::filesystem::path& model_dir,
                                       const std::filesystem::path& adapter_dir);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SPECIAL_TOKENS_H_
