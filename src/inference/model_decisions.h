// The answers of a loaded model to questions: of data, whose answers are known, and of requests.
#ifndef QLORA_INFERENCE_MODEL_DECISIONS_H_
#define QLORA_INFERENCE_MODEL_DECISIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "data/dataset.h"
#include "inference/loaded_model.h"
#include "qlora/model.h"

namespace qlora {

// The layout of the training, by the files of this program and others.
std::optional<PromptLayout> RecordedLayout(const LoadedModel& model);
// Of a template that the user names, the prompt has its spaces itself.
PromptSpace SpaceOf(const LoadedModel& model, const std::string& given_template);

// Asks the questions of each record, in the order of the records. data: the options that the
// dataset was opened with. Errors: InvalidInput.
EvalResult EvaluateDecisions(
    LoadedModel& model, const Dataset& dataset, const DataOptions& data, const EvalOptions& options,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress);

// Answers a request (docs/decisions.md) as JSON text. Errors: as Model::Decide.
std::string AnswerRequest(LoadedModel& model, std::string_view text, const DecideOptions& options);

}  // namespace qlora

#endif  // QLORA_INFERENCE_MODEL_DECISIONS_H_
