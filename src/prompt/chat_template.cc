#include "prompt/chat_template.h"

#include <string_view>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "prompt/assistant_turns.h"
#include "prompt/calls_as_messages.h"
#include "prompt/loss_mask.h"
#include "prompt/missing_prompt.h"
#include "prompt/template_fit.h"

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
                              const OrderedJson& of_record, bool prompt,
                              std::optional<bool> thinks) const {
  if (!jinja_) ThrowInvalidInput("{}", defect_);
  const OrderedJson none;
  const OrderedJson add_generation_prompt = prompt;
  // The conversation comes first, so that no variable of the user's can replace it.
  std::vector<JinjaVariable> variables = {{"messages", &messages},
                                          {"tools", &tools},
                                          {"add_generation_prompt", &add_generation_prompt}};
  const OrderedJson enable_thinking = thinks.value_or(false);
  if (thinks) variables.push_back({kThinkingVariable, &enable_thinking});
  // A record's variables are for it alone, and win over those of all.
  for (const auto& [name, value] : of_record.items()) variables.push_back({name, &value});
  for (const auto& [name, value] : variables_->items()) variables.push_back({name, &value});
  // transformers gives every template `documents`, null without retrieval: for templates the name
  // is always defined.
  variables.push_back({"documents", &none});
  return jinja_->Render(variables, {.limits = {}, .now = now_});
}

RenderedChat ChatTemplate::Render(const OrderedJson& messages, const OrderedJson& tools) const {
  return RenderConversation({.messages = messages, .tools = tools, .trained = {}});
}

// Renders once if the template marks the assistant's text, otherwise several times for each of the
// assistant's turns.
RenderedChat ChatTemplate::RenderConversation(const Conversation& conversation) const {
  const OrderedJson& tools = conversation.tools;
  if (with_tools_ && !tools.is_null()) return with_tools_->RenderConversation(conversation);
  const auto run = [&](const OrderedJson& messages, bool prompt) {
    return Run(messages, tools, conversation.variables, prompt);
  };
  FittedConversation fitted = FitToTemplate(
      conversation, text_, [&](const OrderedJson& messages) { return run(messages, false); });
  const OrderedJson& messages = fitted.messages;
  RenderedChat chat{.text = std::move(fitted.output.text), .assistant = {}};
  chat.readings = std::move(fitted.readings);
  if (jinja_->has_generation()) {
    TakeMarks(fitted.output, messages, chat);
    if (!fitted.origins.empty()) JoinTurns(fitted.origins, chat.assistant);
    return chat;
  }
  const bool may_think = HasWholeWord(text_, kThinkingVariable);
  const RenderMessages render = [&](const OrderedJson& some,
                                    TurnPrompt prompt) -> std::optional<std::string> {
    const bool has_prompt = prompt != TurnPrompt::kNone;
    std::optional<bool> thinks;
    if (has_prompt && prompt != TurnPrompt::kUsual) {
      if (!may_think) return std::nullopt;
      thinks = prompt == TurnPrompt::kWithThoughts;
    }
    try {
      return Run(some, tools, conversation.variables, has_prompt, thinks).text;
    } catch (
        const Error&) {  // many templates refuse a conversation that does not end as they expect
      return std::nullopt;
    }
  };
  const std::string text = chat.text;  // CompletePrompt may change it
  PartRenderings parts(render, messages, text);
  chat.assistant = FindAssistantTurns(parts, special_tokens_);
  CompletePrompt(parts, chat);
  if (!fitted.origins.empty()) JoinTurns(fitted.origins, chat.assistant);
  return chat;
}

// The marks are the user's word about what is trained on: where they cannot be followed, nothing
// is guessed in their place.
void ChatTemplate::TakeMarks(const JinjaOutput& output, const OrderedJson& messages,
                             RenderedChat& chat) const {
  if (output.generation_lost) {
    ThrowInvalidInput(
        "the text that {{% generation %}} marks goes through a function that changes it, so that "
        "its place in the conversation is not known; write the tags around the text as it is put "
        "out");
  }
  std::vector<std::size_t> answers;
  for (std::size_t m = 0; m < messages.size(); ++m) {
    if (messages[m].at("role") == "assistant") answers.push_back(m);
  }
  // A template that does not loop over messages may still mark each answer.
  const bool one_each = answers.size() == output.generation.size();
  for (std::size_t s = 0; s < output.generation.size(); ++s) {
    const JinjaSpan& span = output.generation[s];
    if (!span.message && !one_each) {
      ThrowInvalidInput(
          "cannot tell which message a {{% generation %}} block of the chat template belongs to; "
          "write it in a loop over messages");
    }
    // A variable may hold another message than the one that the block shows.
    const bool names_answer = span.message && messages[*span.message].at("role") == "assistant";
    const bool in_order = one_each && !names_answer;
    chat.assistant.push_back({span.begin, span.end, in_order ? answers[s] : *span.message});
  }
}

std::string ChatTemplate::Prompt(const OrderedJson& messages, const OrderedJson& tools) const {
  return Prompt({.messages = messages, .tools = tools, .trained = {}});
}

std::string ChatTemplate::Prompt(const Conversation& conversation) const {
  const OrderedJson& tools = conversation.tools;
  if (with_tools_ && !tools.is_null()) return with_tools_->Prompt(conversation);
  const auto run = [&](const OrderedJson& messages) {
    return Run(messages, tools, conversation.variables, true);
  };
  return FitToTemplate(conversation, text_, run).output.text;
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
    const RenderedChat chat = Render(probe, nullptr);
    if (chat.assistant.empty()) return std::nullopt;
    const std::vector<std::int32_t> ids =
        tokenizer_.Encode(chat.text, /*add_special_tokens=*/false);
    const LossMask mask = FindTurnTokens(tokenizer_, chat.text, {&chat.assistant.back(), 1}, ids);
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
  ThrowInvalidInput(
      "this model has no chat template; name one with chat_template: {}, or a Jinja file",
      TemplatesFor(tokenizer));
}

}  // namespace qlora
