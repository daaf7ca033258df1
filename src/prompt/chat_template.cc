#include "prompt/chat_template.h"

#include <string_view>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "prompt/assistant_turns.h"

namespace qlora {
namespace {

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
  // The user's variables come after the tokens, because they override the tokenizer's.
  variables.update(ParseVariables(settings.variables));
  variables_ = std::make_shared<const OrderedJson>(std::move(variables));
  for (const AddedToken& token : tokenizer.spec().added_tokens) {
    // Ends of turns are looked for among these texts (FindAssistantTurns).
    if (token.special) special_tokens_.push_back(token.content);
  }
  // A checkpoint may bring a template that is never used: the defect is kept until someone renders.
  try {
    jinja_.emplace(text_, std::move(settings.name));
  } catch (const Error& error) {
    defect_ = error.what();
  }
}

// Gives the template its variables in the order of precedence: of two with one name, the first
// counts.
JinjaOutput ChatTemplate::Run(const OrderedJson& messages, const OrderedJson& tools,
                              bool prompt) const {
  if (!jinja_) ThrowInvalidInput("{}", defect_);
  const OrderedJson none;
  const OrderedJson add_generation_prompt = prompt;
  // The conversation comes first, so that no variable of the user's can replace it.
  std::vector<JinjaVariable> variables = {{"messages", &messages},
                                          {"tools", &tools},
                                          {"add_generation_prompt", &add_generation_prompt}};
  for (const auto& [name, value] : variables_->items()) variables.push_back({name, &value});
  // transformers gives every template `documents`, null without retrieval: for templates the name
  // is always defined.
  variables.push_back({"documents", &none});
  return jinja_->Render(variables, {.limits = {}, .now = now_});
}

// Renders once if the template marks the assistant's text, otherwise several times for each of the
// assistant's turns.
RenderedChat ChatTemplate::Render(const OrderedJson& messages, const OrderedJson& tools) const {
  if (with_tools_ && !tools.is_null()) return with_tools_->Render(messages, tools);
  JinjaOutput output = Run(messages, tools, false);
  RenderedChat chat{.text = std::move(output.text), .assistant = {}};
  // The marks count only if every one of them belongs to a message.
  bool marked = jinja_->has_generation() && !output.generation_lost;
  for (const JinjaSpan& span : output.generation) {
    marked = marked && span.message.has_value();
    chat.assistant.push_back({span.begin, span.end, span.message.value_or(0)});
  }
  if (marked) return chat;
  const RenderMessages render = [&](const OrderedJson& some,
                                    bool prompt) -> std::optional<std::string> {
    try {
      return Run(some, tools, prompt).text;
    } catch (
        const Error&) {  // many templates refuse a conversation that does not end as they expect
      return std::nullopt;
    }
  };
  chat.assistant = FindAssistantTurns(render, messages, chat.text, special_tokens_);
  return chat;
}

std::string ChatTemplate::Prompt(const OrderedJson& messages, const OrderedJson& tools) const {
  if (with_tools_ && !tools.is_null()) return with_tools_->Prompt(messages, tools);
  return Run(messages, tools, true).text;
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
    const RenderedChat chat = Render(probe, nullptr);
    if (chat.assistant.empty()) return std::nullopt;
    const ChatSpan& turn = chat.assistant.back();
    const std::vector<std::int32_t> ids =
        tokenizer_.Encode(std::string_view(chat.text).substr(turn.begin, turn.end - turn.begin),
                          /*add_special_tokens=*/false);
    if (ids.empty() || !tokenizer_.IsSpecial(ids.back())) return std::nullopt;
    return ids.back();
  } catch (const Error&) {  // the template refuses this conversation
    return std::nullopt;
  }
}

}  // namespace qlora
