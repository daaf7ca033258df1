// A loaded model on preferences: what training says of its evaluation data.
#ifndef QLORA_INFERENCE_PREFERENCE_EVALUATION_H_
#define QLORA_INFERENCE_PREFERENCE_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "data/dataset.h"
#include "inference/loaded_model.h"
#include "preference/preference_loss.h"
#include "qlora/model.h"

namespace qlora {

// What the options ask for; nothing without a preference_loss. Errors: InvalidInput as
// PreferenceLossOf, and for options without effect.
std::optional<PreferenceLossOptions> PreferenceLossOf(const EvalOptions& options);

// The adapter that the options name as the reference of this loss; nothing where it is the base, or
// there is none. Errors: InvalidInput for a model that would be compared with itself, and for
// adapters whose tensors take the place of the base's.
std::optional<LoraAdapter> LoadReference(LoadedModel& model, const PreferenceLossOptions& loss,
                                         const EvalOptions& options);

// Several files are measured as one, as in training. reference: of LoadReference, null for the
// base. max_length: of mismatched rows.
EvalResult EvaluatePreferences(
    LoadedModel& model, const Dataset& dataset, const PreferenceLossOptions& loss,
    const LoraAdapter* reference, const EvalOptions& options, std::int64_t max_length,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress);

}  // namespace qlora

#endif  // QLORA_INFERENCE_PREFERENCE_EVALUATION_H_
