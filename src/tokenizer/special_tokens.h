// Which tokens are BOS, EOS, PAD and UNK, and which end a text, as the files of a model say.
#ifndef QLORA_TOKENIZER_SPECIAL_TOKENS_H_
#define QLORA_TOKENIZER_SPECIAL_TOKENS_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace qlora {

struct TokenRoles {
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  std::optional<std::int32_t> pad;
  std::optional<std::int32_t> unk;
  std::vector<std::int32_t> all_eos;  // every token that ends a text, ascending
};

// id_of: the id of a token's text, if it has one.
// Errors: InvalidInput, with file and key, for malformed files and for a BOS or EOS token that does
// not exist. (A PAD or UNK token that does not exist counts as none.)
TokenRoles ReadTokenRoles(
    const std::filesystem::path& model_dir,
    const std::function<std::optional<std::int32_t>(std::string_view)>& id_of);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SPECIAL_TOKENS_H_
