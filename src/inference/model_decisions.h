// The answers of a loaded model to questions: of data, whose answers are known, and of requests.
#ifndef QLORA_INFERENCE_MODEL_DECISIONS_H_
#define QLORA_INFERENCE_MODEL_DECISIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "data/dataset.h"
#include "data/decision_encoder.h"
#include "decision/decision_temperature.h"
#include "decision/decision_wire.h"
#include "inference/asked_questions.h"
#include "inference/dataset_evaluation.h"
#include "inference/decision_source.h"
#include "inference/loaded_model.h"
#include "io/json_fwd.h"
#include "qlora/error.h"
#include "qlora/model.h"

namespace qlora {

// The layout of the training, by the files of this program and others.
std::optional<PromptLayout> RecordedLayout(const std::optional<DecisionSource>& decisions,
                                           const ServedPrompts& prompts);
// Of a template that the user names, the prompt has its spaces itself.
PromptSpace SpaceOf(const std::optional<DecisionSource>& decisions,
                    const std::string& given_template);

// Asks the questions of each record, in the order of the records. data: the options that the
// dataset was opened with. Errors: InvalidInput.
EvalResult EvaluateDecisions(
    LoadedModel& model, const Dataset& dataset, const DataOptions& data, const EvalOptions& options,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress);

// What requests are answered with: an adapter over a base, or the base alone, with its prompts and
// with how it was made to decide. All must outlive what is asked.
struct DecisionModel {
  const LoraAdapter* adapter = nullptr;  // null: the base alone
  const ServedPrompts& prompts;
  const Tokenizer& tokenizer;
  const std::optional<DecisionSource>& decisions;
  std::int64_t max_length = 0;  // tokens of a prompt
  std::string name = {};        // where a request names no model
  AskedQuestions::Hold hold = {};
};

// A request on its way through a model, in parts, between which the model may do something else.
class RequestedDecisions {
 public:
  // Lays out all prompts; no pass is run. Errors: as Model::Decide, PromptTooLong among them.
  RequestedDecisions(const LoadedModel& base, const DecisionModel& model, DecisionRequest request,
                     const DecideOptions& options);
  RequestedDecisions(const RequestedDecisions&) = delete;
  RequestedDecisions& operator=(const RequestedDecisions&) = delete;

  std::int64_t parts() const { return asked_.parts(); }
  std::int64_t longest() const { return asked_.longest(); }  // tokens of a prompt
  // Runs the next part. decoder: over the base, with positions for the longest prompt. memory: for
  // a pass; is replaced if it is too small. DoRA's row lengths of the adapter are there
  // (RefreshNorms). No other pass of the base runs meanwhile.
  void RunPart(const Decoder& decoder, Arena& memory);
  // Once all parts are done: the body of the answer.
  OrderedJson Answer() const;

 private:
  void CheckLength(const AskedQuestions& asked) const;

  const LoadedModel& base_;
  const DecisionModel model_;
  const DecisionRequest request_;
  const DecisionOptions reading_;
  const PromptLayout layout_;
  const Temperatures temperatures_;
  const DecisionEncoder encoder_;
  AskedQuestions asked_;
  DatasetSums sums_;
  std::int64_t next_ = 0;
};

// A prompt beyond the context, of which callers may make an error of their own.
struct PromptTooLong : Error {
  PromptTooLong(std::int64_t prompt_tokens, std::int64_t most);
  std::int64_t tokens;
};

// Answers a request (docs/decisions.md) as JSON text. Errors: as Model::Decide.
std::string AnswerRequest(LoadedModel& model, std::string_view text, const DecideOptions& options);

}  // namespace qlora

#endif  // QLORA_INFERENCE_MODEL_DECISIONS_H_
