#include "export/gguf/gguf_decision_keys.h"

namespace qlora {

void AddDecisionMetadata(const DecisionSource& decision, const std::string& architecture,
                         GgufMetadata& out) {
  out.Add(architecture + kDecisionTypeKey, std::string(kDecisionType));
  for (const auto& [name, temperature] : decision.file.temperatures.values()) {
    out.Add(architecture + kDecisionTemperatureKey + name, static_cast<float>(temperature));
  }
  // A checkpoint may have a chat template of this name.
  out.Set(kDecisionTemplateKey, decision.file.decision_template);
}

void ChangeDecisionMetadata(const GgufMetadata& file, const DecisionSource& decision,
                            const std::string& architecture, GgufMetadata& changes,
                            std::vector<std::string>& gone) {
  GgufMetadata wanted;
  AddDecisionMetadata(decision, architecture, wanted);
  if (const auto own = DecisionOfGguf(file, decision.name)) {
    GgufMetadata found;
    AddDecisionMetadata(*own, architecture, found);
    if (found == wanted) return;
  }
  for (const GgufEntry& entry : wanted.entries()) changes.Set(entry.key, entry.value);
  for (const GgufEntry& entry : file.entries()) {
    const bool is_temperature = entry.key.starts_with(architecture + kDecisionTemperatureKey);
    if (is_temperature && wanted.Find(entry.key) == nullptr) gone.push_back(entry.key);
  }
}

bool WritesPrefixSpace(const Tokenizer& tokenizer, const DecisionSource* decision) {
  const bool brings_own = decision != nullptr && decision->space == PromptSpace::kOfPrompt;
  return tokenizer.spec().add_prefix_space && !brings_own;
}

}  // namespace qlora
