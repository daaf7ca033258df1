// The other files of a tokenizer: which tokens are BOS, EOS, PAD, UNK, and the chat templates.
#ifndef QLORA_TOKENIZER_TOKENIZER_CONFIG_H_
#define QLORA_TOKENIZER_TOKENIZER_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace qlora {

struct TokenRoles {
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  std::optional<std::int32_t> pad;
  std::optional<std::int32_t> unk;
  std::vector<std::int32_t> all_eos;  // ascending
};

// id_of: the id of a token's text, if it has one.
// Errors: InvalidInput, with file and key, for malformed files and for a BOS or EOS token that does
// not exist. (A PAD or UNK token that does not exist counts as none.)
TokenRoles ReadTokenRoles(
    const std::filesystem::path& model_dir,
    const std::function<std::optional<std::int32_t>(std::string_view)>& id_of);

// "default" first. chat_template.jinja takes precedence over tokenizer_config.json, and the file of
// adapter_dir (may be empty) over all, the template for tools included.
std::vector<ChatTemplateText> ReadChatTemplates(const std::filesystem::path& model_dir,
                                                const std::filesystem::path& adapter_dir);

// As Hugging Face names them: the file, and the template for conversations with tools.
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
inline constexpr const char* kToolTemplate = "tool_use";

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKENIZER_CONFIG_H_
