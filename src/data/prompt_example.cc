#include "data/prompt_example.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/printable.h"
#include "io/json.h"
#include "prompt/known_fields.h"
#include "prompt/prompt_layout.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using Kind = PromptLayout::Kind;

constexpr std::int64_t kSamplesTried = 64;
constexpr std::size_t kMostTyped = 160;   // bytes
constexpr std::size_t kMostRecord = 320;  // bytes

// True for a prompt that can be typed and shown on one line: no control character, and not white
// space alone.
bool IsOneLine(std::string_view text) {
  return text.find_first_of("\n\t") == std::string_view::npos && Printable(text) == text &&
         text.find_first_not_of(' ') != std::string_view::npos;
}

// True when the prompt can be given on a command line. "-" would be standard input.
bool IsTyped(const PromptExample& example) {
  return example.prompt != "-" && IsOneLine(example.prompt) &&
         (example.system.empty() || IsOneLine(example.system));
}

// Returns the messages [system] user of a conversation as the texts that a person types.
std::optional<PromptExample> TypedMessages(const OrderedJson& messages) {
  const bool has_system = messages.size() == 2 && messages[0]["role"] == "system";
  if (messages.size() != (has_system ? 2U : 1U) || messages.back()["role"] != "user") return {};
  PromptExample example;
  if (has_system) example.system = messages[0]["content"];
  example.prompt = messages.back()["content"];
  return example;
}

// Returns the record with the fields alone that its prompt depends on.
OrderedJson FieldsOfPrompt(const OrderedJson& record, const RecordLayout& layout) {
  OrderedJson fields = OrderedJson::object();
  for (const auto& [name, value] : record.items()) {
    const bool given = !value.is_null() && value != "";
    if (given && layout.Reads(name)) fields[name] = value;
  }
  return fields;
}

// Returns the prompt that a person types for this record; nothing when the layout makes another
// prompt of it.
std::optional<PromptExample> TypedFields(const OrderedJson& record, const RecordLayout& layout) {
  if (!layout.main_fields_suffice()) return {};
  const auto text = [&](const std::string& field) {
    return HasField(record, field.c_str()) && record[field].is_string()
               ? record[field].get<std::string>()
               : std::string();
  };
  PromptExample example;
  example.prompt = text(layout.main_field());
  example.system = text("system");
  if (!layout.Reads("system")) example.system.clear();
  // The example is shown only if typing it gives the prompt of the record, letter by letter.
  const OrderedJson typed = layout.RecordOf(example.prompt, example.system);
  if (layout.layout().kind == Kind::kText) {
    return layout.Prompt(typed) == layout.Prompt(record) ? std::optional(example) : std::nullopt;
  }
  const Conversation from_typed = layout.PromptConversation(typed);
  const Conversation from_record = layout.PromptConversation(record);
  const bool same = from_typed.messages == from_record.messages &&
                    from_typed.tools == from_record.tools &&
                    from_typed.variables == from_record.variables;
  return same ? std::optional(example) : std::nullopt;
}

// Adds what a record says besides its messages.
void AddContext(const Conversation& conversation, OrderedJson& record) {
  if (!conversation.tools.is_null()) record["tools"] = conversation.tools;
  if (!conversation.variables.is_null()) record["chat_template_kwargs"] = conversation.variables;
}

// Returns the whole conversation up to its last answer.
OrderedJson RecordOfConversation(const OrderedJson& record, const RecordLayout& layout) {
  const Conversation conversation = layout.PromptConversation(record);
  if (layout.layout().format == RecordFormat::kPromptCompletion) {
    OrderedJson prompt = {{"prompt", record["prompt"]}};
    for (const std::string& name : NamesOf(FieldMeaning::kSystem)) {
      if (HasField(record, name.c_str())) prompt[name] = record[name];
    }
    AddContext(conversation, prompt);
    return prompt;
  }
  OrderedJson messages = {{"messages", conversation.messages}};
  AddContext(conversation, messages);
  return messages;
}

// Returns the beginning of a text, up to the end of a word: about a third, and a few words at most.
std::string Beginning(const std::string& text) {
  constexpr std::size_t kMost = 40;
  const std::size_t line = std::min(text.find('\n'), text.size());
  std::size_t end = std::min({text.size() / 3, kMost, line});
  end = std::min(text.find(' ', end), text.size());
  return text.substr(0, std::min(end, line));
}

PromptExample OfText(const Dataset& dataset, std::int64_t i, const Tokenizer& tokenizer) {
  const Sample sample = dataset.Get(i);
  return {.prompt = Beginning(tokenizer.Decode(sample.ids, /*skip_special_tokens=*/true))};
}

// Returns the tokens before the answer, as text with its special tokens.
PromptExample OfTokens(const Dataset& dataset, std::int64_t i, const Tokenizer& tokenizer) {
  const Sample sample = dataset.Get(i);
  const auto first = std::find_if(sample.labels.begin(), sample.labels.end(),
                                  [](std::int32_t label) { return label != kIgnoreLabel; });
  const std::int64_t masked = first - sample.labels.begin();
  // BOS alone, or nothing: everything is trained on.
  if (masked < 2) return OfText(dataset, i, tokenizer);
  const std::span<const std::int32_t> prompt = std::span(sample.ids).first(masked);
  return {.prompt = tokenizer.Decode(prompt, /*skip_special_tokens=*/false), .raw = true};
}

// Returns the prompt of the first question, as text with its special tokens.
PromptExample OfDecision(const Dataset& dataset, std::int64_t i, const Tokenizer& tokenizer) {
  const Sample sample = dataset.Get(i);
  const std::int64_t end = sample.choices.front().row + 1;
  return {.prompt = tokenizer.Decode(std::span(sample.ids).first(end), false), .raw = true};
}

// Returns the prompt of sample i in the form that `generate` takes.
PromptExample ExampleOf(const Dataset& dataset, std::int64_t i, const Tokenizer& tokenizer) {
  const RecordLayout layout(dataset.LayoutOf(i));
  const Kind kind = layout.layout().kind;
  if (kind == Kind::kTokens) return OfTokens(dataset, i, tokenizer);
  if (kind == Kind::kWhole) return OfText(dataset, i, tokenizer);
  if (kind == Kind::kDecision) return OfDecision(dataset, i, tokenizer);
  const OrderedJson record = dataset.ReadRecord(i).value();
  if (!layout.layout().prompt_template.empty()) {
    if (const auto typed = TypedFields(record, layout); typed && IsTyped(*typed)) return *typed;
    return {.record = FormatJson(FieldsOfPrompt(record, layout))};
  }
  const Conversation conversation = layout.PromptConversation(record);
  const auto typed = TypedMessages(conversation.messages);
  if (typed && IsTyped(*typed) && conversation.tools.is_null() &&
      conversation.variables.is_null()) {
    return *typed;
  }
  return {.record = FormatJson(RecordOfConversation(record, layout))};
}

bool IsShort(const PromptExample& example) {
  if (!example.record.empty()) {
    return IsOneLine(example.record) && example.record.size() <= kMostRecord;
  }
  return IsTyped(example) && example.prompt.size() + example.system.size() <= kMostTyped;
}

}  // namespace

PromptExample FindPromptExample(const Dataset& dataset, const Tokenizer& tokenizer) {
  PromptExample found;
  for (std::int64_t i = 0; i < std::min(kSamplesTried, dataset.size()); ++i) {
    // Only records of the layout that is recorded with the adapter.
    if (!(dataset.LayoutOf(i) == dataset.layout())) continue;
    try {
      PromptExample example = ExampleOf(dataset, i, tokenizer);
      if (!IsShort(example)) continue;
      // A prompt to type is better than a record in JSON, for which the search continues.
      if (!example.prompt.empty()) return example;
      if (!found.found()) found = std::move(example);
    } catch (const Error&) {  // such a record has no prompt that can be given alone
    } catch (const OrderedJson::exception&) {
    }
  }
  return found;
}

}  // namespace qlora
