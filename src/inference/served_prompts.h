// The prompts that a model is asked with: those of its training, unless the user says otherwise.
#ifndef QLORA_INFERENCE_SERVED_PROMPTS_H_
#define QLORA_INFERENCE_SERVED_PROMPTS_H_

#include <filesystem>
#include <optional>
#include <string>

#include "prompt/prompt_layout.h"
#include "prompt/prompt_record.h"
#include "qlora/chat.h"

namespace qlora {

// The prompts that the adapter was trained on, or without an adapter those of one that was merged
// into the model. Nothing where no adapter of this program was trained.
std::optional<PromptRecord> PromptsOf(const std::string& adapter,
                                      const std::filesystem::path& model_dir);

// The layout of prompts that are typed: the one of the training, unless the user names a chat
// template or nothing is known.
PromptLayout LayoutToServe(const std::optional<PromptLayout>& recorded, bool template_given,
                           bool has_chat_template);

// The template, its variables and its date: those that the user gives, else those of the training.
ChatFields ChatFieldsOf(ChatFields given, const std::optional<PromptRecord>& trained);

}  // namespace qlora

#endif  // QLORA_INFERENCE_SERVED_PROMPTS_H_
