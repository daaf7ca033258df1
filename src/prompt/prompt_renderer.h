// Prompts in the layout of the data, for whoever lets a model answer: generate, chat, samples of
// training, the command that training prints.
#ifndef QLORA_PROMPT_PROMPT_RENDERER_H_
#define QLORA_PROMPT_PROMPT_RENDERER_H_

#include <optional>
#include <string>
#include <string_view>

#include "io/json_fwd.h"
#include "prompt/chat_template.h"
#include "prompt/prompt_layout.h"
#include "qlora/prompt.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Returns the tokens of a prompt. A text that holds BOS itself gets no second one.
std::vector<std::int32_t> EncodePrompt(const Tokenizer& tokenizer, const PromptText& prompt);

class PromptRenderer {
 public:
  // chat: the chat template of conversations; may be null unless the layout is kChat. Tokenizer and
  // template must outlive the renderer.
  PromptRenderer(PromptLayout layout, const Tokenizer& tokenizer, const ChatTemplate* chat);

  const PromptLayout& layout() const { return layout_.layout(); }
  // False when prompts are read as they are.
  bool has_layout() const;

  // Renders a prompt that a person typed, with a system message that may be "". Errors (all
  // functions): InvalidInput when the layout has no place for a part of it, or the template refuses
  // it.
  PromptText Prompt(std::string_view user, std::string_view system) const;
  // Returns the prompt of a record of the data. The answer of the record is ignored and may be
  // absent.
  PromptText PromptOf(const OrderedJson& record) const;
  // Returns a conversation up to where the next answer begins. tools: an array or null.
  PromptText Conversation(const OrderedJson& messages, const OrderedJson& tools) const;
  // The same, with the variables of the chat template that the conversation has.
  PromptText Conversation(const qlora::Conversation& conversation) const;

 private:
  RecordLayout layout_;
  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  std::optional<ChatTemplate> turns_;  // shows a text layout, without BOS
};

// Returns the Jinja template that makes other programs write the prompts of this layout: the text
// to keep with an adapter as chat_template.jinja, or "" when the model's own template does it. The
// layout belongs to data for a model whose template is `chat` (may be null); `chosen`: `chat` is
// not the template of the model's own files. append_eos: as in training.
std::string TemplateOfLayout(const PromptLayout& layout, const Tokenizer& tokenizer,
                             const ChatTemplate* chat, bool chosen, bool append_eos);

}  // namespace qlora

#endif  // QLORA_PROMPT_PROMPT_RENDERER_H_
