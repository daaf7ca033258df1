#include "export/gguf/gguf_decision_keys.h"

namespace qlora {

void AddDecisionMetadata(const DecisionSource& decision, const std::string& architecture,
                         GgufMetadata& out) {
  out.Add(architecture + kDecisionTypeKey, std::string(kDecisionType));
  for (const auto& [name, temperature] : decision.file.temperatures.values()) {
    out.Add(architecture + kDecisionTemperatureKey + name, static_cast<float>(temperature));
  }
  out.Add(kDecisionTemplateKey, decision.file.decision_template);
}

bool WritesPrefixSpace(const Tokenizer& tokenizer, const DecisionSource* decision) {
  const bool brings_own = decision != nullptr && decision->space == PromptSpace::kOfPrompt;
  return tokenizer.spec().add_prefix_space && !brings_own;
}

}  // namespace qlora
