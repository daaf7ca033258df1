// The prompts that weights were trained on: layout, and variables of the chat template. An adapter
// keeps them in qlora_base.json (base_record.h); a checkpoint into which an adapter was merged
// keeps them in qlora_prompt.json, which other programs ignore.
#ifndef QLORA_PROMPT_PROMPT_RECORD_H_
#define QLORA_PROMPT_PROMPT_RECORD_H_

#include <filesystem>
#include <optional>
#include <string>

#include "io/json_fwd.h"
#include "prompt/prompt_layout.h"

namespace qlora {

inline constexpr const char* kPromptRecord = "qlora_prompt.json";

struct PromptRecord {
  std::string chat_template_kwargs = {};  // a JSON object of variables for the chat template, or ""
  std::string chat_template_date = {};    // the date that the data show; "": the default of data
  // The layout of the data. Nothing in adapters of versions that did not record it.
  std::optional<PromptLayout> layout = {};
};

// Adds the fields of `record` to an object, under the names of the options.
void AddPromptRecord(const PromptRecord& record, Json& json);
// Reads the record that AddPromptRecord has written. Errors: InvalidInput with `where`.
PromptRecord PromptRecordOf(const Json& json, const std::string& where);

void SavePromptRecord(const std::filesystem::path& model_dir, const PromptRecord& record);
// Returns nothing for a model that no adapter was merged into.
std::optional<PromptRecord> LoadPromptRecord(const std::filesystem::path& model_dir);

}  // namespace qlora

#endif  // QLORA_PROMPT_PROMPT_RECORD_H_
