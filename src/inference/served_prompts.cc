#include "inference/served_prompts.h"

#include "model/base_record.h"

namespace qlora {

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

ChatFields ChatFieldsOf(ChatFields given, const std::optional<PromptRecord>& trained) {
  if (!trained) return given;
  if (given.chat_template_kwargs.empty()) {
    given.chat_template_kwargs = trained->chat_template_kwargs;
  }
  if (given.chat_template_date.empty()) given.chat_template_date = trained->chat_template_date;
  return given;
}

std::optional<PromptRecord> PromptsOf(const std::string& adapter,
                                      const std::filesystem::path& model_dir) {
  if (adapter.empty()) return LoadPromptRecord(model_dir);
  const std::optional<BaseRecord> base = LoadBaseRecord(adapter);
  return base ? std::optional(base->prompts) : std::nullopt;
}

}  // namespace qlora
