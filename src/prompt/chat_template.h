// A chat template of a checkpoint: conversations to text (rendered_conversation.h).
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
#include "prompt/conversation.h"
#include "prompt/part_renderings.h"
#include "qlora/chat.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

class RenderedConversation;

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
class ChatTemplate {
 public:
  // text: Jinja. The tokenizer must outlive the template.
  // A malformed template is reported by the first rendering, so that data without conversations
  // does not depend on it. Errors: InvalidInput when the variables are not a JSON object.
  ChatTemplate(std::string text, const Tokenizer& tokenizer, ChatTemplateSettings settings = {});

  // Renders a conversation of which all answers are trained. `messages` is an array of objects with
  // at least a role; `tools` an array or null. May be called by several threads, as all functions.
  // Errors: InvalidInput, without a place in the data, when the template fails.
  RenderedConversation Render(const OrderedJson& messages, const OrderedJson& tools) const;
  // Returns the conversation up to where the assistant's next turn begins. Errors: as Render.
  std::string Prompt(const OrderedJson& messages, const OrderedJson& tools) const;
  std::string Prompt(const Conversation& conversation) const;

  // Runs the template as it is (the users of a conversation go by RenderedConversation) on messages
  // with the tools and variables of `context`. Errors: as Render.
  JinjaOutput Run(const OrderedJson& messages, const Conversation& context,
                  TurnPrompt prompt) const;
  // Returns the template that renders a conversation: this, or that of conversations with tools.
  const ChatTemplate& For(const Conversation& conversation) const;
  // True when the template marks with {% generation %} what the assistant wrote. It has run before.
  bool has_generation() const { return jinja_->has_generation(); }
  // True when prompts may differ by whether the model thinks.
  bool may_think() const;
  // The texts of the special tokens, among which the ends of turns are looked for.
  const std::vector<std::string>& special_tokens() const { return special_tokens_; }

  // True when the rendering may depend on a variable of this name.
  bool ReadsVariable(std::string_view name) const;
  // Returns everything that renderings depend on, as text: equal sources, equal renderings.
  std::string source() const;
  const std::string& text() const { return text_; }
  // The text of the template of conversations with tools: text() where there is no other.
  const std::string& tool_text() const { return with_tools_ ? with_tools_->text() : text_; }

  // Sets another template for conversations with tools.
  void SetToolTemplate(std::unique_ptr<ChatTemplate> with_tools);

  // Returns the special token that ends the assistant's turns, if one does.
  std::optional<std::int32_t> turn_end() const;

 private:
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
