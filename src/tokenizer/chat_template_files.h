// The chat templates that the files of a model hold.
#ifndef QLORA_TOKENIZER_CHAT_TEMPLATE_FILES_H_
#define QLORA_TOKENIZER_CHAT_TEMPLATE_FILES_H_

#include <filesystem>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace qlora {

// "default" first. chat_template.jinja takes precedence over tokenizer_config.json, and both files
// of adapter_dir (may be empty) over all of the model's, its template for tools included. use: with
// kRender, an adapter whose record says that it was trained on plain text counts as having none.
std::vector<ChatTemplateText> ReadChatTemplates(const std::filesystem::path& model_dir,
                                                const std::filesystem::path& adapter_dir,
                                                TemplateUse use);

// The same with templates of a model that are known already, each name once: "default" first, and
// those of adapter_dir take precedence.
std::vector<ChatTemplateText> WithAdapterTemplates(std::vector<ChatTemplateText> of_model,
                                                   const std::filesystem::path& adapter_dir,
                                                   TemplateUse use);

// As Hugging Face names them: the file, and the template for conversations with tools.
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
inline constexpr const char* kToolTemplate = "tool_use";

}  // namespace qlora

#endif  // QLORA_TOKENIZER_CHAT_TEMPLATE_FILES_H_
