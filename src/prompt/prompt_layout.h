// The layout of prompts: how the fields of a record become the text that a model reads and the text
// that the model has to write.
//
// A layout is a value. Training chooses it (LayoutRules) and records it in qlora_base.json beside
// the adapter, after a merge in qlora_prompt.json (prompt_record.h). Every consumer applies the
// recorded layout: the record encoder, and through prompt_renderer.h generate, chat, eval,
// sample_prompts and exports. So the prompt that was trained is the prompt that is used.
//
//   record_format.h         the meaning of the fields of a record
//   field_template.h        prompt and answer made of the fields of a record
//   conversation.h          messages in one form, whatever the file has
//   chat_template_load.h    finds the chat template of a model, an adapter, a file or a name
//   chat_template.h         runs it (jinja/jinja.h)
//   rendered_conversation.h a conversation and its renderings
//   turn_template.h         built-in chat templates, as tables
//   assistant_turns.h       the bytes of the text that the assistant wrote
//   loss_mask.h             the tokens that those bytes are, which are trained on
#ifndef QLORA_PROMPT_PROMPT_LAYOUT_H_
#define QLORA_PROMPT_PROMPT_LAYOUT_H_

#include <optional>
#include <string>
#include <string_view>

#include "io/json_fwd.h"
#include "prompt/conversation.h"
#include "prompt/field_template.h"
#include "prompt/record_format.h"

namespace qlora {

// A value; two records of one layout and one format get texts by the same rule.
struct PromptLayout {
  enum class Kind {
    kChat,      // messages, through a chat template
    kText,      // a prompt and an answer, one behind the other
    kWhole,     // a text to continue; there is no prompt
    kTokens,    // token ids; nothing is known about their text
    kDecision,  // a state and questions, through a decision template (decision/)
  };
  Kind kind = Kind::kWhole;
  RecordFormat format = RecordFormat::kText;
  // kText, and kChat of records that are not conversations: prompt and answer made of the fields of
  // a record (field_template.h). kChat: the contents of the user's and the assistant's messages.
  // kDecision: the first is the Jinja template of decisions.
  std::string prompt_template = {};
  std::string completion_template = {};

  bool operator==(const PromptLayout&) const = default;
};

// True when records get the same texts; the formats may differ.
bool HaveSameTexts(const PromptLayout& a, const PromptLayout& b);

// Returns a warning when data of the layout `data` are read by an adapter that was trained in
// another one, or "". Token ids tell of no layout, and texts may be conversations that are rendered
// already.
std::string WarnOfOtherLayout(const PromptLayout& trained, const PromptLayout& data);

// The user's choice for records of prompt and answer that are not conversations.
enum class LayoutChoice {
  kAuto,               // kChat if the model has a chat template, otherwise kText
  kChat,               // through the chat template
  kText,               // Alpaca as its authors' text; prompt and completion as they are
  kInstructionAnswer,  // Alpaca as "Instruction: ... Answer:"; prompt and completion as they are
};
LayoutChoice ParseLayoutChoice(std::string_view name);  // auto, chat, text, instruction_answer

// The rules that decide the layout of a file's records, together with their format.
struct LayoutRules {
  LayoutChoice choice = LayoutChoice::kAuto;
  std::string prompt_template = {};  // the user's; both or none
  std::string completion_template = {};
  // The layout that an adapter was trained in. It is kept for records of its format, unless the
  // user chooses another.
  std::optional<PromptLayout> recorded = {};
};

// has_chat_template: conversations can be rendered. is_conversation: the prompts of the format
// prompt_completion are lists of messages. Errors: InvalidInput when the rules contradict each
// other, the format, or the lack of a chat template.
PromptLayout ChooseLayout(RecordFormat format, const LayoutRules& rules, bool has_chat_template,
                          bool is_conversation = false);

// Returns "the chat template", "Alpaca text" ...: the layout in a few words.
std::string DescribeLayout(const PromptLayout& layout);

OrderedJson LayoutToJson(const PromptLayout& layout);
// Errors: InvalidInput with `where` for JSON that LayoutToJson has not written.
PromptLayout LayoutFromJson(const OrderedJson& json, const std::string& where);

// A layout that is ready to be applied. May be used by several threads.
class RecordLayout {
 public:
  // Errors: InvalidInput for a malformed template.
  explicit RecordLayout(PromptLayout layout);

  const PromptLayout& layout() const { return layout_; }

  // kText: the text that the model reads, and the text that the model writes. Errors (all
  // functions): InvalidInput, without a place, naming the field that is missing or is not text.
  std::string Prompt(const OrderedJson& record) const;
  std::string Completion(const OrderedJson& record) const;

  // kChat: the whole record as a conversation.
  Conversation WholeConversation(const OrderedJson& record) const;
  // kChat: the conversation up to the beginning of the answer; the answer of the record is ignored
  // and may be absent. A record of messages is a conversation in every format.
  Conversation PromptConversation(const OrderedJson& record) const;

  // Returns the record of a person's text: `user` in the main field, and `system` if it is not
  // empty. Errors: InvalidInput when the layout has no place for one of them.
  OrderedJson RecordOf(std::string_view user, std::string_view system) const;

  // kText: true when a system text changes the prompt.
  bool reads_system() const { return prompt_ && prompt_->Reads("system"); }
  // True when the templates need no field but the main one of each.
  bool main_fields_suffice() const;
  const std::string& main_field() const { return prompt_->main_field(); }
  const std::string& answer_field() const { return completion_->main_field(); }
  // True when the prompt depends on this field of a record.
  bool Reads(std::string_view field) const;
  // True when the prompt or the answer does, or the mask of the tokens.
  bool Uses(std::string_view field) const;
  // True when the answer does.
  bool Answers(std::string_view field) const;

 private:
  void CheckFields(const OrderedJson& record) const;
  Conversation FieldsAsConversation(const OrderedJson& record, bool with_answer) const;

  PromptLayout layout_;
  std::optional<FieldTemplate> prompt_;
  std::optional<FieldTemplate> completion_;
};

}  // namespace qlora

#endif  // QLORA_PROMPT_PROMPT_LAYOUT_H_
