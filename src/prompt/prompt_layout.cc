#include "prompt/prompt_layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/known_fields.h"
#include "records/record_error.h"

namespace qlora {
namespace {

using Kind = PromptLayout::Kind;

constexpr const char* kHistory = "history";

// A layout of records with fields, as templates of them, and the name that people read.
struct FieldLayout {
  std::string_view name;
  std::string_view prompt;
  std::string_view completion;
};

// The text of Stanford's Alpaca, as the trainers use it that came after: the answer begins on a
// new line. A system text takes the place of the first sentences.
constexpr FieldLayout kAlpacaText = {
    "Alpaca text",
    "[[{system}]][[{!system}Below is an instruction that describes a task]]"
    "[[{!system}{?input}, paired with an input that provides further context]]"
    "[[{!system}. Write a response that appropriately completes the request.]]\n\n"
    "### Instruction:\n{instruction}\n\n[[### Input:\n{input}\n\n]]### Response:\n",
    "{output}"};
constexpr FieldLayout kInstructionAnswer = {
    "text with Instruction: and Answer:",
    "[[{system}\n\n]]Instruction:\n{instruction}\n\n[[Input:\n{input}\n\n]]Answer:\n", "{output}"};
constexpr FieldLayout kAsTheyAre = {"prompt and completion as they are", "{prompt}",
                                    "{completion}"};
// The content of the user's message, where Alpaca records are conversations: the instruction, and
// the input on the next line. Either may be empty.
constexpr FieldLayout kAlpacaMessages = {
    "", "[[{instruction}]][[{?instruction}{?input}\n]][[{input}]]", "{output}"};

constexpr std::array<std::pair<std::string_view, Kind>, 5> kKindNames = {{
    {"chat", Kind::kChat},
    {"text", Kind::kText},
    {"whole", Kind::kWhole},
    {"tokens", Kind::kTokens},
    {"decision", Kind::kDecision},
}};
constexpr std::array<std::pair<std::string_view, LayoutChoice>, 4> kChoiceNames = {{
    {"auto", LayoutChoice::kAuto},
    {"chat", LayoutChoice::kChat},
    {"text", LayoutChoice::kText},
    {"instruction_answer", LayoutChoice::kInstructionAnswer},
}};

// Returns the layout of Alpaca records that are not conversations.
const FieldLayout& AlpacaLayout(LayoutChoice choice) {
  return choice == LayoutChoice::kInstructionAnswer ? kInstructionAnswer : kAlpacaText;
}

// Returns the layout, text or messages, of records with fields.
PromptLayout FieldsLayout(RecordFormat format, const LayoutRules& rules, bool through_chat) {
  PromptLayout layout{.kind = through_chat ? Kind::kChat : Kind::kText, .format = format};
  const auto take = [&layout](std::string_view prompt, std::string_view completion) {
    layout.prompt_template = prompt;
    layout.completion_template = completion;
  };
  // Templates of the user lay out records by their fields; prompt and completion are already laid
  // out, whoever wrote them.
  if (!rules.prompt_template.empty() && format != RecordFormat::kPromptCompletion) {
    take(rules.prompt_template, rules.completion_template);
  } else if (format == RecordFormat::kInstruction) {
    const FieldLayout& fields = through_chat ? kAlpacaMessages : AlpacaLayout(rules.choice);
    take(fields.prompt, fields.completion);
  } else {
    take(kAsTheyAre.prompt, kAsTheyAre.completion);
  }
  return layout;
}

// Adds a list of pairs [question, answer], as records of prompt and answer have earlier turns.
void AddHistory(const OrderedJson& record, Conversation& conversation) {
  if (!HasField(record, kHistory)) return;
  conversation.fields.emplace_back(kHistory);
  const auto fail = [] {
    ThrowInvalidInput("field 'history': expected a list of pairs [question, answer] of text");
  };
  OrderedJson history = record[kHistory];
  if (history.is_string()) {
    const std::string text = history;
    if (!Trim(text).empty() && TryParseJson(text, history)) fail();
  }
  if (SaysNothing(history)) return;
  if (!history.is_array()) fail();
  for (std::size_t t = 0; t < history.size(); ++t) {
    const OrderedJson& pair = history[t];
    const bool is_pair =
        pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
    if (!is_pair) fail();
    const Conversation::Origin origin = {kHistory, static_cast<std::int64_t>(t)};
    conversation.Add({{"role", "user"}, {"content", pair[0]}}, false, origin);
    conversation.Add({{"role", "assistant"}, {"content", pair[1]}}, true, origin);
  }
}

}  // namespace

bool HaveSameTexts(const PromptLayout& a, const PromptLayout& b) {
  // In a kChat layout the chat template makes the text; the format of the records does not matter.
  return a.kind == b.kind && (a.kind == Kind::kChat || a.prompt_template == b.prompt_template);
}

std::string WarnOfOtherLayout(const PromptLayout& trained, const PromptLayout& data) {
  const bool has_tokens = trained.kind == Kind::kTokens || data.kind == Kind::kTokens;
  // Plain texts may be conversations that another program rendered: nothing tells.
  const bool may_be_rendered = trained.kind == Kind::kChat && data.kind == Kind::kWhole;
  if (has_tokens || may_be_rendered || HaveSameTexts(trained, data)) return {};
  return fmt::format(
      "the adapter was trained in another prompt layout ({}) than these data get ({}); measure it "
      "on data of the format that it was trained on",
      DescribeLayout(trained), DescribeLayout(data));
}

LayoutChoice ParseLayoutChoice(std::string_view name) {
  for (const auto& [known, choice] : kChoiceNames) {
    if (known == name) return choice;
  }
  ThrowInvalidInput("prompt_layout: expected auto, chat, text or instruction_answer, found '{}'",
                    name);
}

PromptLayout ChooseLayout(RecordFormat format, const LayoutRules& rules, bool has_chat_template,
                          bool is_conversation) {
  const bool own = !rules.prompt_template.empty();
  // With one of the two, half of the record would be laid out by a rule that the user did not see.
  if (own != !rules.completion_template.empty()) {
    ThrowInvalidInput("prompt_template and completion_template must be given together");
  }
  if (format == RecordFormat::kRaw || format == RecordFormat::kText) {
    return {.kind = Kind::kWhole, .format = format};
  }
  if (format == RecordFormat::kInputIds) return {.kind = Kind::kTokens, .format = format};
  if (format == RecordFormat::kDecision) {
    const bool is_recorded = rules.recorded && rules.recorded->kind == Kind::kDecision;
    return is_recorded ? *rules.recorded : PromptLayout{.kind = Kind::kDecision, .format = format};
  }
  if (!has_chat_template && rules.choice == LayoutChoice::kChat) {
    ThrowInvalidInput(
        "prompt_layout chat needs a chat template and the model has none; set "
        "chat_template to plain, to chatml for models with its two tokens, or to a Jinja file");
  }
  // Conversations have no other layout; the user's choice concerns other records.
  if (IsConversationFormat(format) || is_conversation)
    return {.kind = Kind::kChat, .format = format};
  const bool decided = own || rules.choice != LayoutChoice::kAuto;
  const std::optional<PromptLayout>& recorded = rules.recorded;
  const bool fits = recorded && recorded->format == format && !recorded->prompt_template.empty();
  // An adapter keeps the layout that it was trained in: another default of this version, or a
  // chat template that the model has meanwhile, must not change its prompts.
  if (fits && !decided) return *recorded;
  if (format == RecordFormat::kTemplate && !own) {
    ThrowInvalidInput("the format 'template' needs prompt_template and completion_template");
  }
  // A template of the user's is text unless chat is asked for by name.
  const bool automatic = rules.choice == LayoutChoice::kAuto && has_chat_template && !own;
  return FieldsLayout(format, rules, automatic || rules.choice == LayoutChoice::kChat);
}

std::string DescribeLayout(const PromptLayout& layout) {
  switch (layout.kind) {
    case Kind::kChat:
      return "the chat template";
    case Kind::kWhole:
      return "text as it is";
    case Kind::kTokens:
      return "token ids";
    case Kind::kDecision:
      return "the decision template";
    case Kind::kText:
      break;
  }
  for (const FieldLayout* known : {&kAlpacaText, &kInstructionAnswer, &kAsTheyAre}) {
    if (known->prompt == layout.prompt_template) return std::string(known->name);
  }
  return fmt::format("prompt_template {}", FormatJson(OrderedJson(layout.prompt_template)));
}

OrderedJson LayoutToJson(const PromptLayout& layout) {
  const auto* name = std::find_if(kKindNames.begin(), kKindNames.end(),
                                  [&](const auto& known) { return known.second == layout.kind; });
  OrderedJson json = {{"kind", name->first}, {"format", RecordFormatName(layout.format)}};
  // Templates are written out, not named: the built-in ones may change, the adapter must not.
  if (!layout.prompt_template.empty()) {
    json["prompt_template"] = layout.prompt_template;
    json["completion_template"] = layout.completion_template;
  }
  return json;
}

PromptLayout LayoutFromJson(const OrderedJson& json, const std::string& where) {
  const auto text = [&](const char* key) {
    const auto value = json.find(key);
    if (value == json.end()) return std::string();
    if (!value->is_string()) ThrowInvalidInput("{}: prompt_layout: '{}' is not text", where, key);
    return value->get<std::string>();
  };
  if (!json.is_object()) ThrowInvalidInput("{}: prompt_layout: expected an object", where);
  const std::string kind = text("kind");
  const auto* name = std::find_if(kKindNames.begin(), kKindNames.end(),
                                  [&](const auto& known) { return known.first == kind; });
  if (name == kKindNames.end()) {
    ThrowInvalidInput(
        "{}: prompt_layout: the kind '{}' is not known; a later version of qlora "
        "wrote this file",
        where, kind);
  }
  PromptLayout layout{
      .kind = name->second,
      .format = NamePlace([&] { return where; }, [&] { return ParseRecordFormat(text("format")); }),
      .prompt_template = text("prompt_template"),
      .completion_template = text("completion_template")};
  if (layout.kind == Kind::kText && layout.prompt_template.empty()) {
    ThrowInvalidInput("{}: prompt_layout: the kind 'text' needs a prompt_template", where);
  }
  return layout;
}

RecordLayout::RecordLayout(PromptLayout layout) : layout_(std::move(layout)) {
  if (layout_.prompt_template.empty() || layout_.kind == Kind::kDecision) return;
  prompt_.emplace(layout_.prompt_template, "prompt_template");
  completion_.emplace(layout_.completion_template, "completion_template");
}

// The message of a missing field lists the fields that there are.
void RecordLayout::CheckFields(const OrderedJson& record) const {
  if (layout_.format != RecordFormat::kPromptCompletion) return;
  TextField(record, "prompt");
}

std::string RecordLayout::Prompt(const OrderedJson& record) const {
  CheckFields(record);
  return prompt_->Render(record);
}

std::string RecordLayout::Completion(const OrderedJson& record) const {
  if (layout_.format == RecordFormat::kPromptCompletion) return TextField(record, "completion");
  return completion_->Render(record);
}

Conversation RecordLayout::WholeConversation(const OrderedJson& record) const {
  if (prompt_) return FieldsAsConversation(record, true);
  if (layout_.format == RecordFormat::kShareGpt) return ConversationOfShareGpt(record);
  if (layout_.format == RecordFormat::kMessages) return ConversationOfMessages(record);
  return ConversationOfCompletion(record);
}

Conversation RecordLayout::PromptConversation(const OrderedJson& record) const {
  const bool has_messages = record.contains("messages") && !SaysNothing(record["messages"]);
  if (prompt_ && !has_messages) return FieldsAsConversation(record, false);
  // Prompts that are lists of messages: the completion is not looked at, and need not be there.
  if (!has_messages && layout_.format == RecordFormat::kPromptCompletion) {
    RequiredField(record, "prompt");
    return ConversationOfPrompt(record);
  }
  Conversation conversation =
      has_messages ? ConversationOfMessages(record) : WholeConversation(record);
  // An answer may be several messages, such as a tool call and a text.
  while (!conversation.messages.empty() && conversation.messages.back()["role"] == "assistant") {
    conversation.Shorten(conversation.messages.size() - 1);
  }
  if (conversation.messages.empty())
    ThrowInvalidInput("the record has no message before the answer");
  return conversation;
}

// system, the pairs of history, the prompt, the answer.
Conversation RecordLayout::FieldsAsConversation(const OrderedJson& record, bool with_answer) const {
  CheckFields(record);
  const auto is_laid_out = [this](std::string_view field) {
    return prompt_->Reads(field) || completion_->Reads(field);
  };
  Conversation conversation = BeginConversation(record, is_laid_out);
  if (layout_.format == RecordFormat::kInstruction) RequiredField(record, "instruction");
  if (!is_laid_out(kHistory)) AddHistory(record, conversation);
  for (const auto& [name, value] : record.items()) {
    if (is_laid_out(name)) conversation.fields.push_back(name);
  }
  conversation.Add({{"role", "user"}, {"content", prompt_->Render(record)}}, false, {});
  if (!with_answer) return conversation;
  OrderedJson answer = {{"role", "assistant"}, {"content", Completion(record)}};
  const FoundField thoughts = FindByMeaning(record, FieldMeaning::kThoughts);
  if (thoughts && !is_laid_out(thoughts.name)) {
    answer[thoughts.name] = TextField(record, thoughts.name.c_str());
    conversation.fields.push_back(thoughts.name);
  }
  conversation.Add(std::move(answer), true, {});
  return conversation;
}

OrderedJson RecordLayout::RecordOf(std::string_view user, std::string_view system) const {
  if (!prompt_) {  // a conversation
    OrderedJson messages = OrderedJson::array();
    if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
    messages.push_back({{"role", "user"}, {"content", user}});
    return {{"messages", std::move(messages)}};
  }
  if (!prompt_->main_field_suffices() || main_field().empty()) {
    ThrowInvalidInput(
        "the prompts of this adapter are made of several fields: {}; give them all with --record "
        "'{{\"FIELD\": \"...\"}}', or --raw and the whole text",
        layout_.prompt_template);
  }
  if (!system.empty() && layout_.kind == Kind::kText && !reads_system()) {
    ThrowInvalidInput("the layout of the prompts has no place for a system message: {}",
                      layout_.prompt_template);
  }
  OrderedJson record = OrderedJson::object();
  if (!system.empty()) record["system"] = system;
  record[main_field()] = user;
  return record;
}

bool RecordLayout::main_fields_suffice() const {
  return prompt_ && prompt_->main_field_suffices() && !prompt_->main_field().empty() &&
         completion_->main_field_suffices() && !completion_->main_field().empty();
}

bool RecordLayout::Reads(std::string_view field) const {
  const bool is_chat = layout_.kind == Kind::kChat;
  for (const auto meaning : {FieldMeaning::kSystem, FieldMeaning::kTools, FieldMeaning::kVariables,
                             FieldMeaning::kVariable}) {
    if (is_chat && IsKnownAs(field, meaning)) return true;
  }
  if (prompt_) {
    return prompt_->Reads(field) || (is_chat && field == kHistory);
  }
  if (layout_.format == RecordFormat::kShareGpt) return field == "conversations";
  return field == (layout_.format == RecordFormat::kMessages ? "messages" : "prompt");
}

bool RecordLayout::Answers(std::string_view field) const {
  if (layout_.format == RecordFormat::kPromptCompletion && field == "completion") return true;
  return completion_ && completion_->Reads(field);
}

bool RecordLayout::Uses(std::string_view field) const {
  switch (layout_.kind) {
    case Kind::kTokens:
      return field == "input_ids" || field == "labels" || field == "attention_mask" ||
             field == "loss_mask" || IsKnownAs(field, FieldMeaning::kMask);
    case Kind::kWhole:
      return field == "text";
    case Kind::kDecision:
      return true;
    case Kind::kChat:
      if (prompt_ && IsKnownAs(field, FieldMeaning::kThoughts)) return true;
      break;
    case Kind::kText:
      break;
  }
  return Answers(field) || Reads(field);
}

}  // namespace qlora
