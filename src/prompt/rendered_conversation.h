// A conversation and its renderings by a chat template.
#ifndef QLORA_PROMPT_RENDERED_CONVERSATION_H_
#define QLORA_PROMPT_RENDERED_CONVERSATION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prompt/assistant_turns.h"
#include "prompt/chat_template.h"
#include "prompt/conversation.h"
#include "prompt/fit/template_fit.h"

namespace qlora {

// What a conversation says, how a template shows it, and how it would show a variation: whoever
// asks what a text depends on, asks here. A template runs
//   once         for the text, and again where the conversation must be fitted (fit/template_fit.h)
//   once or more for each trained turn and for the last answer (assistant_turns.h), unless the
//                template marks what the assistant wrote with {% generation %}
//   once or more for each variation, which has a text of its own
class RenderedConversation {
 public:
  // The template must outlive it. Errors: InvalidInput, without a place in the data, when the
  // template fails or the bounds of trained turns cannot be told.
  RenderedConversation(const ChatTemplate& chat, Conversation conversation);

  const Conversation& conversation() const { return conversation_; }
  // Special tokens included, BOS too where the template has it.
  const std::string& text() const { return text_; }
  // What the assistant wrote in trained messages; ascending, disjoint.
  const std::vector<ChatSpan>& turns() const { return turns_; }
  // Fields and roles that were given to the template under other names, as "thinking as
  // reasoning_content".
  const std::vector<std::string>& readings() const { return readings_; }
  // What is trained otherwise than the template's prompt asks for.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Renders the conversation as `change` leaves it; no message of it is trained unless `change`
  // says so. Nothing when the template refuses it.
  std::optional<RenderedConversation> With(const std::function<void(Conversation&)>& change);

  // True when the text may depend on a variable of this name.
  bool ReadsVariable(std::string_view name) const { return chat_->ReadsVariable(name); }

  // How often the template has run, with the variations that it did not refuse.
  std::int64_t renderings() const { return renderings_; }

 private:
  std::vector<ChatSpan> FindTurns(const ChatTemplate& chat, const FittedConversation& fitted);

  const ChatTemplate* chat_;
  Conversation conversation_;
  std::string text_;
  std::vector<ChatSpan> turns_;
  std::vector<std::string> readings_;
  std::vector<std::string> warnings_;
  std::int64_t renderings_ = 0;
};

}  // namespace qlora

#endif  // QLORA_PROMPT_RENDERED_CONVERSATION_H_
