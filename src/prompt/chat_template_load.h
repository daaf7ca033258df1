// The chat template of a model: named by an option, or the checkpoint's own.
#ifndef QLORA_PROMPT_CHAT_TEMPLATE_LOAD_H_
#define QLORA_PROMPT_CHAT_TEMPLATE_LOAD_H_

#include <memory>

#include "prompt/chat_template.h"
#include "qlora/chat.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The day that strftime_now shows. Data must render alike today and tomorrow, so that a run can be
// repeated and resumed; an answer is given today.
enum class ChatClock { kFixed, kToday };

// Loads the template that `fields` names ("chatml", "plain", the name of one of the checkpoint's
// templates, or a file), or the checkpoint's own: for conversations with tools the template named
// tool_use, if it exists. Returns nothing when neither `fields` nor the checkpoint has a template.
// Errors: InvalidInput naming the option.
std::unique_ptr<ChatTemplate> LoadChatTemplate(const ChatFields& fields, const Tokenizer& tokenizer,
                                               ChatClock clock);

}  // namespace qlora

#endif  // QLORA_PROMPT_CHAT_TEMPLATE_LOAD_H_
