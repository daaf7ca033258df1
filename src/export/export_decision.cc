#include "export/export_decision.h"

#include "base/check.h"
#include "decision/decision_template.h"
#include "prompt/chat_template_load.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

std::optional<DecisionSource> DecisionToWrite(const ExportOptions& options,
                                              const AdapterSet& adapters,
                                              const std::filesystem::path& model_dir) {
  std::optional<DecisionSource> decision = FindDecisionSource(adapters.first(), model_dir);
  if (!options.decision_template.empty()) {
    const Tokenizer tokenizer = Tokenizer::Load(model_dir, adapters.first(), TemplateUse::kShow);
    const auto chat = LoadChatTemplate({}, tokenizer, ChatClock::kFixed);
    const DecisionTokenizer letters(tokenizer);
    // Temperatures are of one template.
    decision.emplace();
    decision->file.labels = letters.LabelTexts();
    decision->file.decision_template =
        LoadDecisionTemplate(options.decision_template, letters, chat.get()).text();
  }
  if (options.decision_temperature.empty()) return decision;
  if (!decision) {
    ThrowInvalidInput("decision_temperature: the model does not decide; give decision_template");
  }
  decision->file.temperatures =
      ParseTemperatures(options.decision_temperature, "decision_temperature");
  decision->file.fitted_on.clear();
  return decision;
}

}  // namespace qlora
