// How a model was made to decide: template and temperatures, which lie beside an adapter, in the
// folder of a model that an adapter was merged into, or in the keys of a GGUF file.
#ifndef QLORA_INFERENCE_DECISION_SOURCE_H_
#define QLORA_INFERENCE_DECISION_SOURCE_H_

#include <filesystem>
#include <optional>
#include <string>

#include "decision/decision_file.h"
#include "decision/decision_labels.h"
#include "gguf/gguf.h"
#include "prompt/prompt_layout.h"
#include "tokenizer/gguf/gguf_vocabulary.h"

namespace qlora {

// The keys of llama.cpp, beside kDecisionTemplateKey; they stand behind the architecture.
inline constexpr const char* kDecisionTypeKey = ".decision.type";
inline constexpr const char* kDecisionTemperatureKey = ".decision.temperature.";

struct DecisionSource {
  DecisionFile file;                           // without labels in GGUF files
  PromptSpace space = PromptSpace::kOfPrompt;  // who puts a space before its prompts
  std::string name;                            // of the file that says so

  PromptLayout layout() const;
};

// Returns what a GGUF file says of decisions; nothing when it is no decision model. Errors:
// InvalidInput for a type that is not llama.cpp's nimble, without a template, or with a temperature
// that is not above 0.
std::optional<DecisionSource> DecisionOfGguf(const GgufMetadata& metadata, const std::string& name);

// Looks beside the adapter ("": none), then at the model.
std::optional<DecisionSource> FindDecisionSource(const std::filesystem::path& adapter,
                                                 const std::filesystem::path& model_dir);
// The same for a model with this tokenizer. Errors: InvalidInput for labels of another one.
std::optional<DecisionSource> LoadDecisionSource(const std::filesystem::path& adapter,
                                                 const std::filesystem::path& model_dir,
                                                 const Tokenizer& tokenizer);

}  // namespace qlora

#endif  // QLORA_INFERENCE_DECISION_SOURCE_H_
