// The prompts of training data, as they are recorded with the adapter that is trained on them.
#ifndef QLORA_DATA_RECORDED_PROMPTS_H_
#define QLORA_DATA_RECORDED_PROMPTS_H_

#include <filesystem>
#include <string>

#include "data/dataset.h"
#include "prompt/chat_template.h"
#include "prompt/prompt_record.h"
#include "qlora/data.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

struct RecordedPrompts {
  PromptRecord record;  // with a layout
  // Jinja that shows the layout to other programs; "": the model's own template does.
  std::string chat_template;
};

// The layout of `train`, and its chat template. Texts that were rendered with the chat template are
// recorded as conversations, so that `chat` and `generate` render them again. fields: the options
// that train was opened with. chat: the template of its conversations, or null. template_dir: the
// folder of the adapter whose chat_template.jinja `chat` may come from, or "".
RecordedPrompts RecordPrompts(const Dataset& train, const DataFields& fields,
                              const Tokenizer& tokenizer, const ChatTemplate* chat,
                              const std::filesystem::path& template_dir);

}  // namespace qlora

#endif  // QLORA_DATA_RECORDED_PROMPTS_H_
