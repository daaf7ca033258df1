// A chat template of a checkpoint: conversations to text, and which part of it the assistant wrote.
#ifndef QLORA_PROMPT_CHAT_TEMPLATE_H_
#define QLORA_PROMPT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/jinja.h"
#include "prompt/chat_renderer.h"
#include "prompt/conversation.h"
#include "qlora/chat.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

struct ChatTemplateSettings {
  // JSON object of variables that the template sees; they win over the special tokens.
  std::string variables = {};
  std::optional<std::tm> now = {};     // today, for the template; none: the local time
  std::string name = "chat_template";  // in messages
};

// Renders as apply_chat_template of Hugging Face transformers does: the template sees messages,
// tools, documents (none), add_generation_prompt, the existing special tokens of the tokenizer
// (bos_token, eos_token, pad_token, unk_token, sep_token, cls_token, mask_token), and further
// variables.
//
// The assistant wrote the text that {% generation %} marks; in a template without such marks, the
// text that the rendering up to and with a turn adds to the prompt for this turn
// (assistant_turns.h).
class ChatTemplate : public ChatRenderer {
 public:
  // text: Jinja. The tokenizer must outlive the template.
  // A malformed template is reported by the first rendering, so that data without conversations
  // does not depend on it. Errors: InvalidInput when the variables are not a JSON object.
  ChatTemplate(std::string text, const Tokenizer& tokenizer, ChatTemplateSettings settings = {});

  RenderedChat Render(const OrderedJson& messages, const OrderedJson& tools) const override;
  // Also gives the template the record's own variables, and the conversation in the form that the
  // template reads (template_fit.h).
  RenderedChat RenderConversation(const Conversation& conversation) const override;
  bool ReadsVariable(std::string_view name) const override;
  // Returns the conversation up to where the assistant's next turn begins. Errors: as Render.
  std::string Prompt(const OrderedJson& messages, const OrderedJson& tools) const;
  std::string Prompt(const Conversation& conversation) const;
  std::string source() const override;
  const std::string& text() const { return text_; }

  // Sets another template for conversations with tools.
  void SetToolTemplate(std::unique_ptr<ChatTemplate> with_tools);

  // Returns the special token that ends the assistant's turns, if one does.
  std::optional<std::int32_t> turn_end() const;

 private:
  // thinks: overrides the variable enable_thinking.
  JinjaOutput Run(const OrderedJson& messages, const OrderedJson& tools,
                  const OrderedJson& variables, bool prompt,
                  std::optional<bool> thinks = std::nullopt) const;
  void TakeMarks(const JinjaOutput& output, const OrderedJson& messages, RenderedChat& chat) const;

  std::string text_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<const OrderedJson> variables_;  // an object, the special tokens included
  std::optional<std::tm> now_;
  std::optional<JinjaTemplate> jinja_;
  std::string defect_;                       // why jinja_ is empty
  std::vector<std::string> special_tokens_;  // their texts
  std::unique_ptr<ChatTemplate> with_tools_;
};

// "chatml or plain": the built-in templates for a model without one. ChatML needs its two tokens.
std::string TemplatesFor(const Tokenizer& tokenizer);

// The error where a conversation needs a chat template.
[[noreturn]] void ThrowNoChatTemplate(const Tokenizer& tokenizer);

}  // namespace qlora

#endif  // QLORA_PROMPT_CHAT_TEMPLATE_H_
