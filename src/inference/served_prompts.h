// The prompts that a model is asked with: those of its training, unless the user says otherwise.
#ifndef QLORA_INFERENCE_SERVED_PROMPTS_H_
#define QLORA_INFERENCE_SERVED_PROMPTS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "prompt/chat_template.h"
#include "prompt/prompt_layout.h"
#include "prompt/prompt_record.h"
#include "prompt/prompt_renderer.h"
#include "qlora/chat.h"
#include "qlora/prompt.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

class ServedPrompts {
 public:
  // adapter: "" for the model alone, which may hold a merged one. given: what the user says of chat
  // templates. tokenizer must outlive this.
  ServedPrompts(const ChatFields& given, const std::string& adapter,
                const std::filesystem::path& model_dir, const Tokenizer& tokenizer);

  // The layout of the training; nothing where no adapter of this program was trained.
  std::optional<PromptLayout> recorded() const;
  bool template_given() const { return template_given_; }
  // The template, its variables and its date: those that the user gives, else those of the
  // training.
  const ChatFields& chat_fields() const { return chat_fields_; }
  const ChatTemplate* chat() const { return chat_.get(); }

  // For the user: the layout of prompts that are typed, or "".
  std::string Describe() const;
  // Ends the description of a layout that is the recorded one.
  const char* AsTrained() const;
  bool has_turns() const { return renderer_.has_layout(); }
  PromptText Prompt(std::string_view user, std::string_view system) const;
  // JSON: a record of a data set, or its `messages` and `tools` ("": none). Errors: InvalidInput.
  PromptText OfRecord(std::string_view record) const;
  PromptText OfChat(std::string_view messages, std::string_view tools) const;
  // The same of an object with `messages` and, perhaps, `tools` and `chat_template_kwargs`.
  PromptText OfConversation(const OrderedJson& conversation) const;
  // As OfChat, as text, by the chat template, whatever the layout is.
  std::string ChatPrompt(std::string_view messages, std::string_view tools) const;

  // Tokens that end an answer.
  const std::vector<std::int32_t>& ends() const { return ends_; }

 private:
  const Tokenizer& tokenizer_;
  std::optional<PromptRecord> trained_;
  bool has_adapter_;     // without one, trained_ is of an adapter that was merged into the model
  bool template_given_;  // the user names a chat template
  ChatFields chat_fields_;
  std::unique_ptr<ChatTemplate> chat_;
  PromptRenderer renderer_;
  std::vector<std::int32_t> ends_;
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_SERVED_PROMPTS_H_
