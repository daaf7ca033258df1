#include "data/chat_template.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "data/assistant_turns.h"
#include "tokenizer/tokenizer_config.h"

namespace qlora {
namespace {

// ChatML, for base models without a template:
//   <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n
struct BuiltIn {
  std::string_view name;
  std::string_view text;
};

// For models that know the two tokens of ChatML, and for those that know EOS only.
constexpr BuiltIn kBuiltIn[] = {{"chatml", R"({%- if tools -%}
  {{- raise_exception("ChatML cannot show tools; use a template of a model that knows them") -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.tool_calls or message.content is not string -%}
    {{- raise_exception("ChatML shows text only; use a template of a model that knows tools") -}}
  {%- endif -%}
  {{- "<|im_start|>" + message.role + "\n" -}}
  {%- if message.role == "assistant" -%}
    {%- generation -%}{{- message.content + "<|im_end|>" -}}{%- endgeneration -%}
  {%- else -%}
    {{- message.content + "<|im_end|>" -}}
  {%- endif -%}
  {{- "\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%})"},
                                {"plain", R"({%- if tools -%}
  {{- raise_exception("this template cannot show tools") -}}
{%- endif -%}
{{- bos_token -}}
{%- for message in messages -%}
  {%- if message.tool_calls or message.content is not string -%}
    {{- raise_exception("this template shows text only") -}}
  {%- endif -%}
  {{- message.role | capitalize + ":\n" -}}
  {%- if message.role == "assistant" -%}
    {%- generation -%}{{- message.content + eos_token -}}{%- endgeneration -%}
  {%- else -%}
    {{- message.content -}}
  {%- endif -%}
  {{- "\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- "Assistant:\n" -}}
{%- endif -%}
)"}};

// The day that data shows when the user names none.
constexpr std::string_view kDataDate = "2024-07-26";

std::tm ParseDate(const std::string& text) {
  std::array<int, 3> parts = {};  // year, month, day
  const char* at = text.data();
  const char* const end = at + text.size();
  bool valid = text.size() == 10;
  for (std::size_t i = 0; i < parts.size() && valid; ++i) {
    const auto [stop, error] = std::from_chars(at, end, parts[i]);
    valid = error == std::errc() && (i == 2 ? stop == end : stop != end && *stop == '-');
    at = stop + 1;
  }
  std::tm date = {};
  date.tm_year = parts[0] - 1900;
  date.tm_mon = parts[1] - 1;
  date.tm_mday = parts[2];
  date.tm_hour = 12;
  const std::tm given = date;
  valid = valid && std::mktime(&date) != -1 && date.tm_mday == given.tm_mday &&
          date.tm_mon == given.tm_mon && date.tm_year == given.tm_year;
  if (!valid)
    ThrowInvalidInput("chat_template_date: expected a day as YYYY-MM-DD, found '{}'", text);
  return date;
}

OrderedJson ParseVariables(const std::string& text) {
  if (text.empty()) return nullptr;
  OrderedJson variables = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!variables.is_object()) {
    ThrowInvalidInput(
        "chat_template_kwargs: expected a JSON object such as {{\"enable_thinking\": false}}, "
        "found '{}'",
        text);
  }
  return variables;
}

const std::string* FindText(const std::vector<ChatTemplateText>& templates, std::string_view name) {
  const auto found = std::find_if(templates.begin(), templates.end(),
                                  [&](const ChatTemplateText& t) { return t.name == name; });
  return found == templates.end() ? nullptr : &found->text;
}

std::string NamesOf(const std::vector<ChatTemplateText>& templates) {
  std::string names;
  for (const ChatTemplateText& t : templates) names += ", " + t.name;
  return names;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string text, const Tokenizer& tokenizer, OrderedJson variables,
                           std::optional<std::tm> now, std::string name)
    : text_(std::move(text)), tokenizer_(tokenizer), variables_(OrderedJson::object()), now_(now) {
  const auto add = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) variables_[key] = tokenizer.TokenText(*id);
  };
  add("bos_token", tokenizer.bos_id());
  add("eos_token", tokenizer.eos_id());
  add("pad_token", tokenizer.pad_id());
  add("unk_token", tokenizer.unk_id());
  if (variables.is_object()) variables_.update(variables);
  for (const AddedToken& token : tokenizer.spec().added_tokens) {
    if (token.special) special_tokens_.push_back(token.content);
  }
  try {
    jinja_.emplace(text_, std::move(name));
  } catch (const Error& error) {
    defect_ = error.what();
  }
}

JinjaOutput ChatTemplate::Run(const OrderedJson& messages, const OrderedJson& tools,
                              bool prompt) const {
  if (!jinja_) ThrowInvalidInput("{}", defect_);
  const OrderedJson none;
  const OrderedJson add_generation_prompt = prompt;
  std::vector<JinjaVariable> variables = {{"messages", &messages},  // the first of a name counts
                                          {"tools", &tools},
                                          {"add_generation_prompt", &add_generation_prompt}};
  for (const auto& [name, value] : variables_.items()) variables.push_back({name, &value});
  variables.push_back({"documents", &none});
  return jinja_->Render(variables, {.limits = {}, .now = now_});
}

RenderedChat ChatTemplate::Render(const OrderedJson& messages, const OrderedJson& tools) const {
  if (with_tools_ && !tools.is_null()) return with_tools_->Render(messages, tools);
  JinjaOutput output = Run(messages, tools, false);
  RenderedChat chat{.text = std::move(output.text), .assistant = {}};
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
    } catch (const Error&) {
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
  std::string source = text_ + '\n' + variables_.dump();
  if (now_) source += fmt::format("\n{} {}", now_->tm_year, now_->tm_yday);
  if (with_tools_) source += '\n' + with_tools_->source();
  return source;
}

void ChatTemplate::SetToolTemplate(std::unique_ptr<ChatTemplate> with_tools) {
  with_tools_ = std::move(with_tools);
}

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

std::unique_ptr<ChatTemplate> LoadChatTemplate(const ChatFields& fields, const Tokenizer& tokenizer,
                                               ChatClock clock) {
  const std::vector<ChatTemplateText>& own = tokenizer.spec().chat_templates;
  const OrderedJson variables = ParseVariables(fields.chat_template_kwargs);
  std::optional<std::tm> now;
  if (!fields.chat_template_date.empty() || clock == ChatClock::kFixed) {
    now = ParseDate(fields.chat_template_date.empty() ? std::string(kDataDate)
                                                      : fields.chat_template_date);
  }
  const auto make = [&](std::string text, std::string name) {
    return std::make_unique<ChatTemplate>(std::move(text), tokenizer, variables, now,
                                          std::move(name));
  };
  const std::string& choice = fields.chat_template;
  if (choice.empty()) {
    const std::string* text = FindText(own, "default");
    const std::string* with_tools = FindText(own, kToolTemplate);
    if (text == nullptr) text = with_tools;
    if (text == nullptr) return nullptr;
    auto chat = make(*text, "chat_template");
    if (with_tools != nullptr) chat->SetToolTemplate(make(*with_tools, "chat_template tool_use"));
    return chat;
  }
  for (const BuiltIn& known : kBuiltIn) {
    if (choice == known.name) return make(std::string(known.text), choice);
  }
  if (const std::string* text = FindText(own, choice)) return make(*text, choice);
  if (!std::filesystem::is_regular_file(choice)) {
    ThrowInvalidInput(
        "chat_template: '{}' is neither a file nor the name of a template; the names are chatml, "
        "plain{}",
        choice, NamesOf(own));
  }
  std::string text = ReadTextFile(choice);
  const JinjaTemplate check(text, choice);  // reports a malformed file at once
  return make(std::move(text), choice);
}

void ChatFields::Declare(OptionTable& table) {
  table.Add(
      "chat_template", &chat_template,
      "chatml, plain (turns end in EOS), a Jinja file, or the name of one of the checkpoint's "
      "templates; default: the checkpoint's own");
  table.Add(
      "chat_template_kwargs", &chat_template_kwargs,
      "JSON object with variables of the chat template, such as {\"enable_thinking\": false}");
  table.Add(
      "chat_template_date", &chat_template_date,
      "the day that templates show, YYYY-MM-DD; default: 2024-07-26 in data, so that runs can "
      "be repeated, else today");
}

}  // namespace qlora
