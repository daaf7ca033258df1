#include "prompt/chat_template.h"

#include <string_view>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "prompt/fit/template_names.h"
#include "prompt/loss_mask.h"
#include "prompt/rendered_conversation.h"

namespace qlora {
namespace {

constexpr std::string_view kThinkingVariable = "enable_thinking";

OrderedJson ParseVariables(const std::string& text) {
  if (text.empty()) return OrderedJson::object();
  OrderedJson variables = ParseOrderedJson(text, "chat_template_kwargs");
  if (!variables.is_object()) {
    ThrowInvalidInput(
        "chat_template_kwargs: expected a JSON object such as {{\"enable_thinking\": false}}, "
        "found '{}'",
        text);
  }
  return variables;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string text, const Tokenizer& tokenizer,
                           ChatTemplateSettings settings)
    : text_(std::move(text)), tokenizer_(tokenizer), now_(settings.now) {
  OrderedJson variables = OrderedJson::object();
  const auto add = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) variables[key] = tokenizer.TokenText(*id);
  };
  add("bos_token", tokenizer.bos_id());
  add("eos_token", tokenizer.eos_id());
  add("pad_token", tokenizer.pad_id());
  add("unk_token", tokenizer.unk_id());
  for (const auto& [key, id] : tokenizer.other_roles()) add(key.c_str(), id);
  // The user's variables come after the tokens, because they override the tokenizer's.
  variables.update(ParseVariables(settings.variables));
  variables_ = std::make_shared<const OrderedJson>(std::move(variables));
  for (const AddedToken& token : tokenizer.spec().added_tokens) {
    if (token.special) special_tokens_.push_back(token.content);
  }
  // A checkpoint may bring a template that is never used: the defect is kept until someone renders.
  try {
    jinja_.emplace(text_, std::move(settings.name));
  } catch (const Error& error) {
    defect_ = error.what();
  }
}

const ChatTemplate& ChatTemplate::For(const Conversation& conversation) const {
  return with_tools_ && !conversation.tools.is_null() ? with_tools_->For(conversation) : *this;
}

bool ChatTemplate::may_think() const { return HasWholeWord(text_, kThinkingVariable); }

// Gives the template its variables in the order of precedence: of two with one name, the first
// counts.
JinjaOutput ChatTemplate::Run(const OrderedJson& messages, const Conversation& context,
                              TurnPrompt prompt) const {
  if (!jinja_) ThrowInvalidInput("{}", defect_);
  const OrderedJson none;
  const OrderedJson add_generation_prompt = prompt != TurnPrompt::kNone;
  // The conversation comes first, so that no variable of the user's can replace it.
  std::vector<JinjaVariable> variables = {{"messages", &messages},
                                          {"tools", &context.tools},
                                          {"add_generation_prompt", &add_generation_prompt}};
  const OrderedJson thinks = prompt == TurnPrompt::kWithThoughts;
  if (thinks == true || prompt == TurnPrompt::kWithoutThoughts) {
    variables.push_back({kThinkingVariable, &thinks});
  }
  // A record's variables are for it alone, and win over those of all.
  for (const auto& [name, value] : context.variables.items()) variables.push_back({name, &value});
  for (const auto& [name, value] : variables_->items()) variables.push_back({name, &value});
  // transformers gives every template `documents`, null without retrieval: for templates the name
  // is always defined.
  variables.push_back({"documents", &none});
  return jinja_->Render(variables, {.limits = {}, .now = now_});
}

RenderedConversation ChatTemplate::Render(const OrderedJson& messages,
                                          const OrderedJson& tools) const {
  return {*this, {messages, tools, std::vector<bool>(messages.size(), true)}};
}

std::string ChatTemplate::Prompt(const OrderedJson& messages, const OrderedJson& tools) const {
  return Prompt({.messages = messages, .tools = tools, .trained = {}});
}

std::string ChatTemplate::Prompt(const Conversation& conversation) const {
  const ChatTemplate& chat = For(conversation);
  const auto run = [&](const OrderedJson& messages) {
    return chat.Run(messages, conversation, TurnPrompt::kUsual);
  };
  return FitToTemplate(conversation, chat.text(), run).output.text;
}

bool ChatTemplate::ReadsVariable(std::string_view name) const {
  return HasWholeWord(text_, name) || (with_tools_ && with_tools_->ReadsVariable(name));
}

std::string ChatTemplate::source() const {
  std::string source = text_ + '\n';
  source += FormatJson(*variables_);
  // All that a rendering depends on is part of the source, which is part of the key of an index:
  // samples of another date or of other variables are never taken from it.
  if (now_) source += fmt::format("\n{} {}", now_->tm_year, now_->tm_yday);
  if (with_tools_) source += '\n' + with_tools_->source();
  return source;
}

void ChatTemplate::SetToolTemplate(std::unique_ptr<ChatTemplate> with_tools) {
  with_tools_ = std::move(with_tools);
}

// The last token of the assistant's turn in a conversation of two words.
std::optional<std::int32_t> ChatTemplate::turn_end() const {
  const OrderedJson probe = {{{"role", "user"}, {"content", "Hello"}},
                             {{"role", "assistant"}, {"content", "Hi"}}};
  try {
    const RenderedConversation chat = Render(probe, nullptr);
    if (chat.turns().empty()) return std::nullopt;
    const std::vector<std::int32_t> ids =
        tokenizer_.Encode(chat.text(), /*add_special_tokens=*/false);
    const LossMask mask = FindTurnTokens(tokenizer_, chat.text(), {&chat.turns().back(), 1}, ids);
    const TurnTokens& turn = mask.turns.front();
    const std::int32_t last = turn.begin < turn.end ? ids[turn.end - 1] : -1;
    if (last < 0 || !tokenizer_.IsSpecial(last)) return std::nullopt;
    return last;
  } catch (const Error&) {  // the template refuses this conversation
    return std::nullopt;
  }
}

std::string TemplatesFor(const Tokenizer& tokenizer) {
  const bool knows_chatml =
      tokenizer.IdOf("<|im_start|>").has_value() && tokenizer.IdOf("<|im_end|>").has_value();
  return knows_chatml ? "chatml or plain" : "plain";
}

void ThrowNoChatTemplate(const Tokenizer& tokenizer) {
  ThrowInvalidInput("this model has no chat template; set chat_template to {}, or to a Jinja file",
                    TemplatesFor(tokenizer));
}

}  // namespace qlora
