// The metrics of answers whose questions have known ones.
#ifndef QLORA_INFERENCE_DECISION_EVALUATION_H_
#define QLORA_INFERENCE_DECISION_EVALUATION_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "decision/decision_temperature.h"
#include "decision/prediction.h"
#include "inference/asked_questions.h"
#include "qlora/decision.h"
#include "qlora/model_options.h"

namespace qlora {

// The options that are given and that other data than questions do not have.
std::vector<std::string> OptionsOfQuestions(const EvalOptions& options);

// sums: of AskedQuestions::Run.
DecisionResult JudgeDecisions(const AskedQuestions& asked, const DatasetSums& sums,
                              const Temperatures& temperatures, std::int64_t bins);

// A warning where the labels have a small share of the whole vocabulary's probability, which says
// that the prompt does not end where the model would answer with a letter; otherwise "".
std::string WarnOfLabelMass(const DecisionResult& result);

// Reads lines of predictions. Errors (both): InvalidInput with file and line.
std::vector<Prediction> ParsePredictions(const std::string& text, const std::string& file);
std::vector<Prediction> ReadPredictions(const std::filesystem::path& file);

}  // namespace qlora

#endif  // QLORA_INFERENCE_DECISION_EVALUATION_H_
