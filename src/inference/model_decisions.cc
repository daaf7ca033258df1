#include "inference/model_decisions.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "data/batch_stream.h"
#include "decision/decision_wire.h"
#include "dist/together.h"
#include "inference/asked_questions.h"
#include "inference/dataset_evaluation.h"
#include "inference/decision_evaluation.h"
#include "io/json.h"
#include "objective/decision.h"
#include "pass/eval_memory.h"
#include "prompt/chat_template_load.h"

namespace qlora {
namespace {

// The layout of requests: the user's template, that of the training, or the usual one.
PromptLayout DecisionLayout(const LoadedModel& model, const DecisionOptions& reading) {
  const std::optional<PromptLayout> recorded = RecordedLayout(model);
  PromptLayout layout = {.kind = PromptLayout::Kind::kDecision, .format = RecordFormat::kDecision};
  if (recorded && recorded->kind == layout.kind) layout = *recorded;
  const auto chat =
      LoadChatTemplate(model.prompts.chat_fields(), model.tokenizer, ChatClock::kFixed);
  return WithDecisionTemplate(std::move(layout), reading, model.tokenizer, chat.get());
}

// Temperatures hold for the prompts that they were fitted to.
Temperatures TemperaturesOf(const LoadedModel& model, const std::string& given,
                            const PromptLayout& layout) {
  if (!given.empty()) return ParseTemperatures(given, "decision_temperature");
  const bool fits =
      model.decisions && model.decisions->file.decision_template == layout.prompt_template;
  return fits ? model.decisions->file.temperatures : Temperatures();
}

DatasetSums Ask(LoadedModel& model, const AskedQuestions& asked, bool without_adapter,
                const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const DecoderConfig config = model.ConfigFor(without_adapter);
  if (asked.largest_id() >= config.vocab_size) {
    ThrowInvalidInput("token id {} ('{}') is beyond the model's vocabulary of {}",
                      asked.largest_id(), model.tokenizer.TokenText(asked.largest_id()),
                      config.vocab_size);
  }
  const Decoder decoder(*model.backend, config, model.weights, model.precision, asked.longest());
  const std::int64_t rows = EvalRows(asked.largest());
  Arena memory = model.ReservePasses(decoder, rows, UnfoldedRows(rows, asked.unfolding()));
  model.UseNorms();
  return *asked.Run(model.context.communicator(), model.place(), decoder,
                    model.AdapterFor(without_adapter), memory,
                    [&](std::int64_t done, std::int64_t total) {
                      if (progress) progress(done, total);
                      return true;
                    });
}

}  // namespace

std::optional<PromptLayout> RecordedLayout(const LoadedModel& model) {
  return model.decisions ? model.decisions->layout() : model.prompts.recorded();
}

PromptSpace SpaceOf(const LoadedModel& model, const std::string& given_template) {
  return model.decisions && given_template.empty() ? model.decisions->space
                                                   : PromptSpace::kOfPrompt;
}

EvalResult EvaluateDecisions(LoadedModel& model, const Dataset& dataset, const DataOptions& data,
                             const EvalOptions& options,
                             const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (!dataset.has_one_layout()) {
    ThrowInvalidInput("dataset: evaluate files of questions apart from other files");
  }
  const PromptLayout& layout = dataset.layout();
  const DecisionEncoder encoder(layout.prompt_template, data.decision, model.tokenizer);
  AskedQuestions asked(encoder, options.permutations == "all");
  Together(model.context.communicator(), [&] { AskAll(dataset, encoder, asked); });
  const DatasetSums sums = Ask(model, asked, options.without_adapter, progress);
  Temperatures temperatures;
  if (!options.without_adapter || !options.decision_temperature.empty()) {
    temperatures = TemperaturesOf(model, options.decision_temperature, layout);
  }
  const std::vector<double> values = DecisionObjective().Values(sums.sums, sums.totals);
  EvalResult result;
  result.loss = values.front();
  result.perplexity = std::exp(result.loss);
  result.token_accuracy =
      ValueOf(MetricsOf(DecisionObjective(), values, /*of_steps=*/false), "accuracy");
  result.sequences = dataset.size();
  result.seconds = sums.seconds;
  result.decision = JudgeDecisions(asked, sums, temperatures, options.ece_bins);
  result.tokens = result.decision->questions;
  result.decision->decision_template = layout.prompt_template;
  result.decision->labels = DecisionTokenizer(model.tokenizer, data.decision.space).LabelTexts();
  return result;
}

std::string AnswerRequest(LoadedModel& model, std::string_view text, const DecideOptions& options) {
  model.memory->Free();
  const DecisionRequest request = ParseDecisionRequest(text, "request");
  DecisionOptions reading;
  reading.decision_template = options.decision_template;
  reading.space = SpaceOf(model, options.decision_template);
  const PromptLayout layout = DecisionLayout(model, reading);
  const DecisionEncoder encoder(layout.prompt_template, reading, model.tokenizer);
  AskedQuestions asked(encoder);
  std::vector<AnsweredQuestion> questions;
  for (const Question& question : request.decision.questions) {
    const std::size_t n = question.options.size();
    // No answer is known; what is computed does not depend on it.
    questions.push_back({std::ssize(questions), std::vector(n, 1 / static_cast<double>(n))});
  }
  asked.Add(request.decision, questions, 0);
  if (asked.longest() > model.config.max_position_embeddings) {
    ThrowInvalidInput("the prompt has {} tokens; this model reads at most {}", asked.longest(),
                      model.config.max_position_embeddings);
  }
  const DatasetSums sums = Ask(model, asked, false, {});
  const Temperatures temperatures = TemperaturesOf(model, options.decision_temperature, layout);
  std::vector<std::vector<double>> probabilities;
  for (Prediction& row : asked.Answers(sums, temperatures).rows) {
    probabilities.push_back(std::move(row.probabilities));
  }
  const std::string name = request.model.empty() ? model.dir.filename().string() : request.model;
  return FormatJson(DecisionAnswer(request, probabilities, name, asked.prompt_tokens()));
}

}  // namespace qlora
