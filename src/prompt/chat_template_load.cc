// Chooses the chat template: built in, of the checkpoint, or a file.
#include "prompt/chat_template_load.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "prompt/turn_template.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

// Templates for base models without a template.
struct BuiltIn {
  std::string_view name;
  std::string_view text;
};

// For models that know the two tokens of ChatML:
//   <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n
// and for models that know EOS only:
//   User:\nHello\nAssistant:\nHi</s>\n
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
  {%- if message.role not in ["system", "user", "assistant"] -%}
    {{- raise_exception("this template knows the roles system, user and assistant, not " + message.role) -}}
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

// Returns noon of a day that exists: mktime would turn 30 February into 1 March, so that day and
// month must come back unchanged.
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

// Returns the text of the template of that name; null when there is no such template.
const std::string* FindText(const std::vector<ChatTemplateText>& templates, std::string_view name) {
  const auto found = std::find_if(templates.begin(), templates.end(),
                                  [&](const ChatTemplateText& t) { return t.name == name; });
  return found == templates.end() ? nullptr : &found->text;
}

// Returns ", default, tool_use": the names that the checkpoint adds to the built-in names.
std::string NamesOf(const std::vector<ChatTemplateText>& templates) {
  std::string names;
  for (const ChatTemplateText& t : templates) names += ", " + t.name;
  return names;
}

}  // namespace

std::unique_ptr<ChatTemplate> LoadChatTemplate(const ChatFields& fields, const Tokenizer& tokenizer,
                                               ChatClock clock) {
  const std::vector<ChatTemplateText>& own = tokenizer.spec().chat_templates;
  std::optional<std::tm> now;
  // Templates of Llama 3.1 print the date. In data it must not be today's: samples, and so hashes
  // and indexes, would change at midnight.
  if (!fields.chat_template_date.empty() || clock == ChatClock::kFixed) {
    now = ParseDate(fields.chat_template_date.empty() ? std::string(kDataDate)
                                                      : fields.chat_template_date);
  }
  const auto make = [&](std::string text, std::string name) {
    return std::make_unique<ChatTemplate>(
        std::move(text), tokenizer,
        ChatTemplateSettings{fields.chat_template_kwargs, now, std::move(name)});
  };
  const std::string& choice = fields.chat_template;
  if (choice.empty()) {
    const std::string* text = FindText(own, "default");
    const std::string* with_tools = FindText(own, kToolTemplate);
    // A checkpoint may name its only template tool_use.
    if (text == nullptr) text = with_tools;
    if (text == nullptr) return nullptr;
    auto chat = make(*text, "chat_template");
    if (with_tools != nullptr) chat->SetToolTemplate(make(*with_tools, "chat_template tool_use"));
    return chat;
  }
  for (const BuiltIn& known : kBuiltIn) {
    // Names first, files last: ./chatml names a file that is called like a built-in template.
    if (choice == known.name) return make(std::string(known.text), choice);
  }
  if (const auto pieces = FindTurnPieces(choice)) {
    return make(ComposeTurnTemplate(*pieces), choice);
  }
  if (const std::string* text = FindText(own, choice)) return make(*text, choice);
  if (!std::filesystem::is_regular_file(choice)) {
    ThrowInvalidInput(
        "chat_template: '{}' is neither a file nor the name of a template; the names are chatml, "
        "plain, {}{}",
        choice, fmt::join(TurnPieceNames(), ", "), NamesOf(own));
  }
  std::string text = ReadTextFile(choice);
  const JinjaTemplate check(text, choice);  // reports a malformed file at once
  return make(std::move(text), choice);
}

void ChatFields::Declare(OptionTable& table) {
  table.AddPath(
      "chat_template", &chat_template,
      "template of conversations: chatml, plain (turns end in EOS), another built-in one (alpaca, "
      "llama3, mistral ...; docs/data.md lists them), a Jinja file, or the name of one of the "
      "checkpoint's templates; default: the checkpoint's own");
  table.Add(
      "chat_template_kwargs", &chat_template_kwargs,
      "variables of the chat template, as a JSON object such as {\"enable_thinking\": false}");
  table.Add("chat_template_date", &chat_template_date,
            "date that chat templates show, YYYY-MM-DD; default: 2024-07-26 in data, so that runs "
            "can be repeated, else today");
}

}  // namespace qlora
