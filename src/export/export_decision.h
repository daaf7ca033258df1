// How the model that is written decides.
#ifndef QLORA_EXPORT_EXPORT_DECISION_H_
#define QLORA_EXPORT_EXPORT_DECISION_H_

#include <filesystem>
#include <optional>

#include "inference/decision_source.h"
#include "io/peft/adapter_source.h"
#include "qlora/export.h"

namespace qlora {

// The template and temperatures of the options, where given, in the place of those of the adapter
// or the model; nothing for a model that does not decide. Errors: InvalidInput for temperatures
// without a template, and as LoadDecisionTemplate.
std::optional<DecisionSource> DecisionToWrite(const ExportOptions& options,
                                              const AdapterSet& adapters,
                                              const std::filesystem::path& model_dir);

}  // namespace qlora

#endif  // QLORA_EXPORT_EXPORT_DECISION_H_
