#include "data/recorded_prompts.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "io/json.h"
#include "prompt/prompt_renderer.h"
#include "qlora/error.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

// The text that the template puts between a question and its answer, for example
// "<|im_end|>\n<|im_start|>assistant\n", or "" when the template refuses a question.
std::string TextBeforeAnswer(const ChatTemplate& chat) {
  // A control character marks the end of the question in the rendered prompt.
  constexpr std::string_view kMark = "\x01";
  try {
    const OrderedJson question = {{{"role", "user"}, {"content", kMark}}};
    const std::string prompt = chat.Prompt(question, nullptr);
    const std::size_t at = prompt.find(kMark);
    return at == std::string::npos ? "" : prompt.substr(at + kMark.size());
  } catch (const Error&) {
    return "";
  }
}

// True when texts are conversations that someone has rendered with the chat template: they hold
// what the template puts between a question and its answer.
bool AreRendered(const Dataset& data, const Tokenizer& tokenizer, const ChatTemplate& chat) {
  constexpr std::int64_t kTried = 8;
  constexpr std::size_t kShortestText = 4;  // shorter ones may occur in any text
  const std::string between = TextBeforeAnswer(chat);
  if (between.size() < kShortestText) return false;
  // A few samples decide. One sample without the text shows plain text.
  for (std::int64_t i = 0; i < std::min(kTried, data.size()); ++i) {
    const std::string text = tokenizer.Decode(data.Get(i).ids, /*skip_special_tokens=*/false);
    if (text.find(between) == std::string::npos) return false;
  }
  return true;
}

// The layout that prompts get later.
PromptLayout LayoutToRecord(const Dataset& train, const Tokenizer& tokenizer,
                            const ChatTemplate* chat) {
  const PromptLayout& layout = train.layout();
  const bool rendered = layout.kind == PromptLayout::Kind::kWhole && chat != nullptr &&
                        AreRendered(train, tokenizer, *chat);
  if (!rendered) return layout;
  return {.kind = PromptLayout::Kind::kChat, .format = RecordFormat::kMessages};
}

}  // namespace

RecordedPrompts RecordPrompts(const Dataset& train, const DataFields& fields,
                              const Tokenizer& tokenizer, const ChatTemplate* chat,
                              const std::filesystem::path& template_dir) {
  PromptLayout layout = LayoutToRecord(train, tokenizer, chat);
  // The template is recorded where the model's own does not show the layout: the user gave it, it
  // came with the adapter that training continues, or the data are not conversations.
  const bool chosen =
      !fields.chat.chat_template.empty() ||
      (!template_dir.empty() && std::filesystem::exists(template_dir / kChatTemplateFile));
  std::string text = TemplateOfLayout(layout, tokenizer, chat, chosen, fields.reading.append_eos);
  return {{.chat_template_kwargs = fields.chat.chat_template_kwargs,
           .chat_template_date = fields.chat.chat_template_date,
           .layout = std::move(layout)},
          std::move(text)};
}

}  // namespace qlora
