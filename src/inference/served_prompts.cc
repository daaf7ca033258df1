#include "inference/served_prompts.h"

#include <algorithm>

#include "base/check.h"
#include "io/json.h"
#include "model/base_record.h"
#include "prompt/chat_template_load.h"
#include "prompt/conversation.h"

namespace qlora {
namespace {

// The prompts that the adapter was trained on, or without an adapter those of one that was merged
// into the model. Nothing where no adapter of this program was trained.
std::optional<PromptRecord> PromptsOf(const std::string& adapter,
                                      const std::filesystem::path& model_dir) {
  if (adapter.empty()) return LoadPromptRecord(model_dir);
  const std::optional<BaseRecord> base = LoadBaseRecord(adapter);
  return base ? std::optional(base->prompts) : std::nullopt;
}

ChatFields ChatFieldsOf(ChatFields given, const std::optional<PromptRecord>& trained) {
  if (!trained) return given;
  if (given.chat_template_kwargs.empty()) {
    given.chat_template_kwargs = trained->chat_template_kwargs;
  }
  if (given.chat_template_date.empty()) given.chat_template_date = trained->chat_template_date;
  return given;
}

// The layout of prompts that are typed: the one of the training, unless the user names a chat
// template or nothing is known.
PromptLayout LayoutToServe(const std::optional<PromptLayout>& recorded, bool template_given,
                           bool has_chat_template) {
  // Token ids tell nothing of prompts, and decisions are no texts that go on.
  const bool known = recorded && recorded->kind != PromptLayout::Kind::kTokens &&
                     recorded->kind != PromptLayout::Kind::kDecision;
  const bool possible = known && (recorded->kind != PromptLayout::Kind::kChat || has_chat_template);
  if (possible && !template_given) return *recorded;
  if (!has_chat_template) return {.kind = PromptLayout::Kind::kWhole};
  return {.kind = PromptLayout::Kind::kChat, .format = RecordFormat::kMessages};
}

// `messages` and `tools`: JSON arrays as a record of a data set has them; tools may be "".
Conversation ParseConversation(std::string_view messages, std::string_view tools) {
  OrderedJson record = {{"messages", ParseOrderedJson(messages, "messages")}};
  if (!tools.empty()) record["tools"] = ParseOrderedJson(tools, "tools");
  return ConversationOfMessages(record);
}

}  // namespace

// Members are initialized in the order of their declaration: the template before the renderer.
ServedPrompts::ServedPrompts(const ChatFields& given, const std::string& adapter,
                             const std::filesystem::path& model_dir, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      trained_(PromptsOf(adapter, model_dir)),
      has_adapter_(!adapter.empty()),
      template_given_(!given.chat_template.empty()),
      chat_fields_(ChatFieldsOf(given, trained_)),
      chat_(LoadChatTemplate(chat_fields_, tokenizer,
                             recorded() ? ChatClock::kFixed : ChatClock::kToday)),
      renderer_(LayoutToServe(recorded(), template_given_, chat_ != nullptr), tokenizer,
                chat_.get()),
      ends_(tokenizer.eos_ids()) {
  // Chat models end an answer with the end of a turn, which the tokenizer need not list as an end.
  const auto end = chat_ ? chat_->turn_end() : std::nullopt;
  if (end && std::ranges::count(ends_, *end) == 0) ends_.push_back(*end);
}

std::optional<PromptLayout> ServedPrompts::recorded() const {
  return trained_ ? trained_->layout : std::nullopt;
}

const char* ServedPrompts::AsTrained() const {
  return has_adapter_ ? ", as in training" : ", as the merged adapter was trained";
}

std::string ServedPrompts::Describe() const {
  const bool trained = recorded() == renderer_.layout();
  if (!renderer_.has_layout() && !trained) return {};
  std::string text = DescribeLayout(renderer_.layout());
  if (trained) text += AsTrained();
  if (!renderer_.has_layout()) text += "; the prompt is read as it is";
  return text;
}

PromptText ServedPrompts::Prompt(std::string_view user, std::string_view system) const {
  return renderer_.Prompt(user, system);
}

PromptText ServedPrompts::OfRecord(std::string_view record) const {
  const OrderedJson json = ParseOrderedJson(record, "record");
  if (!json.is_object()) {
    ThrowInvalidInput("record: expected a JSON object with the fields of a record, found '{}'",
                      record);
  }
  return renderer_.PromptOf(json);
}

PromptText ServedPrompts::OfChat(std::string_view messages, std::string_view tools) const {
  const Conversation conversation = ParseConversation(messages, tools);
  return renderer_.Conversation(conversation.messages, conversation.tools);
}

PromptText ServedPrompts::OfConversation(const OrderedJson& conversation) const {
  return renderer_.Conversation(ConversationOfMessages(conversation));
}

std::string ServedPrompts::ChatPrompt(std::string_view messages, std::string_view tools) const {
  if (chat_ == nullptr) ThrowNoChatTemplate(tokenizer_);
  return chat_->Prompt(ParseConversation(messages, tools));
}

}  // namespace qlora
