#include "prompt/prompt_renderer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "prompt/turn_template.h"

namespace qlora {
namespace {

using Kind = PromptLayout::Kind;

}  // namespace

std::vector<std::int32_t> EncodePrompt(const Tokenizer& tokenizer, const PromptText& prompt) {
  const std::optional<std::int32_t> bos = tokenizer.bos_id();
  // Text that was rendered by a chat template brings BOS along; a second one is a prompt that the
  // model was never trained on.
  const bool has_bos = bos && prompt.text.starts_with(tokenizer.TokenText(*bos));
  std::vector<std::int32_t> ids =
      tokenizer.Encode(prompt.text, prompt.add_special_tokens && !has_bos);
  const bool adds_eos = prompt.add_special_tokens && !has_bos && tokenizer.adds_eos();
  // EOS after a prompt would end the text, and the model would begin another one.
  if (adds_eos && !ids.empty()) ids.pop_back();
  return ids;
}

PromptRenderer::PromptRenderer(PromptLayout layout, const Tokenizer& tokenizer,
                               const ChatTemplate* chat)
    : layout_(std::move(layout)), tokenizer_(&tokenizer), chat_(chat) {
  if (this->layout().kind != Kind::kText) return;
  // Without BOS, which EncodePrompt adds.
  if (const auto pieces = PiecesOfLayout(layout_, /*bos=*/false, /*eos=*/true)) {
    turns_.emplace(ComposeTurnTemplate(*pieces), tokenizer);
  }
}

bool PromptRenderer::has_layout() const {
  return layout().kind == Kind::kChat || layout().kind == Kind::kText;
}

PromptText PromptRenderer::Prompt(std::string_view user, std::string_view system) const {
  if (has_layout()) return PromptOf(layout_.RecordOf(user, system));
  if (!system.empty()) {
    ThrowInvalidInput(
        "a system message needs a chat template, and the prompt is read as it is; name a template "
        "with --chat_template");
  }
  return {.text = std::string(user)};
}

PromptText PromptRenderer::PromptOf(const OrderedJson& record) const {
  switch (layout().kind) {
    case Kind::kChat: {
      const qlora::Conversation conversation = layout_.PromptConversation(record);
      if (chat_ == nullptr) ThrowNoChatTemplate(*tokenizer_);
      return {.text = chat_->Prompt(conversation), .add_special_tokens = false};
    }
    case Kind::kText:
      return {.text = layout_.Prompt(record)};
    case Kind::kWhole:
    case Kind::kTokens:
    case Kind::kDecision:
      break;
  }
  ThrowInvalidInput("the prompt layout is {}, which takes no record; give the prompt as text",
                    DescribeLayout(layout()));
}

PromptText PromptRenderer::Conversation(const OrderedJson& messages,
                                        const OrderedJson& tools) const {
  return Conversation({.messages = messages, .tools = tools, .trained = {}});
}

PromptText PromptRenderer::Conversation(const qlora::Conversation& conversation) const {
  // The layout of the training data wins over a chat template that the model may have.
  if (layout().kind == Kind::kText && turns_) return {.text = turns_->Prompt(conversation)};
  if (layout().kind == Kind::kChat && chat_ != nullptr) {
    return {.text = chat_->Prompt(conversation), .add_special_tokens = false};
  }
  ThrowNoChatTemplate(*tokenizer_);
}

// Other programs would give a model of plain text their default template, so its template shows
// only the content of a message.
std::string TemplateOfLayout(const PromptLayout& layout, const Tokenizer& tokenizer,
                             const ChatTemplate* chat, bool chosen, bool append_eos) {
  const bool is_text = layout.kind == Kind::kText;
  const bool is_whole = layout.kind == Kind::kWhole && chat == nullptr;
  if (!is_text && !is_whole) return chat != nullptr && chosen ? chat->text() : "";
  const auto pieces = PiecesOfLayout(RecordLayout(layout), tokenizer.adds_bos(),
                                     append_eos && tokenizer.eos_id().has_value());
  return pieces ? ComposeTurnTemplate(*pieces) : "";
}

}  // namespace qlora
