#include "inference/model_decisions.h"

#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/check.h"
#include "decision/decision_wire.h"
#include "dist/together.h"
#include "inference/decision_evaluation.h"
#include "inference/model_passes.h"
#include "io/json.h"
#include "objective/decision.h"
#include "prompt/chat_template_load.h"

namespace qlora {
namespace {

// Temperatures hold for the prompts that they were fitted to.
Temperatures TemperaturesOf(const std::optional<DecisionSource>& decisions,
                            const std::string& given, const PromptLayout& layout) {
  if (!given.empty()) return ParseTemperatures(given, "decision_temperature");
  const bool fits = decisions && decisions->file.decision_template == layout.prompt_template;
  return fits ? decisions->file.temperatures : Temperatures();
}

// The layout of requests: the user's template, that of the training, or the usual one.
PromptLayout DecisionLayout(const DecisionModel& model, const DecisionOptions& reading) {
  const std::optional<PromptLayout> recorded = RecordedLayout(model.decisions, model.prompts);
  PromptLayout layout = {.kind = PromptLayout::Kind::kDecision, .format = RecordFormat::kDecision};
  if (recorded && recorded->kind == layout.kind) layout = *recorded;
  const auto chat =
      LoadChatTemplate(model.prompts.chat_fields(), model.tokenizer, ChatClock::kFixed);
  return WithDecisionTemplate(std::move(layout), reading, model.tokenizer, chat.get());
}

DecisionOptions ReadingOf(const DecisionModel& model, const DecideOptions& options) {
  DecisionOptions reading;
  reading.decision_template = options.decision_template;
  reading.space = SpaceOf(model.decisions, options.decision_template);
  return reading;
}

// No answer is known; what is computed does not depend on it.
std::vector<AnsweredQuestion> QuestionsOf(const Decision& decision) {
  std::vector<AnsweredQuestion> questions;
  for (const Question& question : decision.questions) {
    const std::size_t n = question.options.size();
    questions.push_back({std::ssize(questions), std::vector(n, 1 / static_cast<double>(n))});
  }
  return questions;
}

DatasetSums Ask(LoadedModel& model, const AskedQuestions& asked, bool without_adapter,
                const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const LoraAdapter* adapter = model.AdapterFor(without_adapter);
  CheckToken(asked.largest_id(), model.ConfigFor(adapter).vocab_size, model.tokenizer);
  const ModelPasses passes(model, adapter, asked.longest(), asked.largest(), asked.unfolding(),
                           progress);
  return *asked.Run(passes.meter());
}

}  // namespace

std::optional<PromptLayout> RecordedLayout(const std::optional<DecisionSource>& decisions,
                                           const ServedPrompts& prompts) {
  return decisions ? decisions->layout() : prompts.recorded();
}

PromptSpace SpaceOf(const std::optional<DecisionSource>& decisions,
                    const std::string& given_template) {
  return decisions && given_template.empty() ? decisions->space : PromptSpace::kOfPrompt;
}

EvalResult EvaluateDecisions(LoadedModel& model, const Dataset& dataset, const DataOptions& data,
                             const EvalOptions& options,
                             const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (!dataset.has_one_layout()) {
    ThrowInvalidInput("dataset: evaluate files of questions apart from other files");
  }
  const PromptLayout& layout = dataset.layout();
  const std::string& required = options.required_template;
  if (!required.empty() && required != layout.prompt_template) {
    ThrowInvalidInput(
        "decision_template: {} has another template, which the adapter was trained with: leave the "
        "option out",
        (std::filesystem::path(model.adapter_folder) / kDecisionFile).string());
  }
  const DecisionEncoder encoder(layout.prompt_template, data.decision, model.tokenizer);
  AskedQuestions asked(encoder, options.permutations == "all");
  Together(model.context.communicator(), [&] { AskAll(dataset, encoder, asked); });
  const DatasetSums sums = Ask(model, asked, options.without_adapter, progress);
  Temperatures temperatures;
  if (!options.without_adapter || !options.decision_temperature.empty()) {
    temperatures = TemperaturesOf(model.decisions, options.decision_temperature, layout);
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

PromptTooLong::PromptTooLong(std::int64_t prompt_tokens, std::int64_t most)
    : Error(ErrorCode::kInvalidInput,
            fmt::format("the prompt has {} tokens; this model reads at most {}", prompt_tokens,
                        most)),
      tokens(prompt_tokens) {}

RequestedDecisions::RequestedDecisions(const LoadedModel& base, const DecisionModel& model,
                                       DecisionRequest request, const DecideOptions& options)
    : base_(base),
      model_(model),
      request_(std::move(request)),
      reading_(ReadingOf(model, options)),
      layout_(DecisionLayout(model, reading_)),
      temperatures_(TemperaturesOf(model.decisions, options.decision_temperature, layout_)),
      encoder_(layout_.prompt_template, reading_, model.tokenizer),
      asked_(encoder_, /*all_orders=*/false, model.hold) {
  const std::vector<AnsweredQuestion> questions = QuestionsOf(request_.decision);
  // One question tells of a state that is too long, before it is laid out for all of them.
  AskedQuestions first(encoder_);
  first.Add(request_.decision, std::span(questions).first(1), 0);
  CheckLength(first);
  asked_.Add(request_.decision, questions, 0);
  CheckLength(asked_);
  CheckToken(asked_.largest_id(), base.config.vocab_size, model.tokenizer);
}

void RequestedDecisions::CheckLength(const AskedQuestions& asked) const {
  if (asked.longest() > model_.max_length) throw PromptTooLong(asked.longest(), model_.max_length);
}

void RequestedDecisions::RunPart(const Decoder& decoder, Arena& memory) {
  sums_.Add(asked_.RunPart(
      {base_.context.communicator(), base_.place(), decoder, model_.adapter, memory}, next_));
  ++next_;
}

OrderedJson RequestedDecisions::Answer() const {
  std::vector<std::vector<double>> probabilities;
  for (Prediction& row : asked_.Answers(sums_, temperatures_).rows) {
    probabilities.push_back(std::move(row.probabilities));
  }
  const std::string& name = request_.model.empty() ? model_.name : request_.model;
  return DecisionAnswer(request_, probabilities, name, asked_.prompt_tokens());
}

std::string AnswerRequest(LoadedModel& model, std::string_view text, const DecideOptions& options) {
  model.memory->Free();
  model.UseNorms();
  RequestedDecisions asked(model,
                           {.adapter = model.AdapterFor(false),
                            .prompts = model.prompts,
                            .tokenizer = model.tokenizer,
                            .decisions = model.decisions,
                            .max_length = model.config.max_position_embeddings,
                            .name = model.dir.filename().string()},
                           ParseDecisionRequest(text, "request"), options);
  const Decoder decoder(*model.backend, model.config, model.weights, model.precision,
                        asked.longest());
  Arena memory;
  for (std::int64_t part = 0; part < asked.parts(); ++part) asked.RunPart(decoder, memory);
  return FormatJson(asked.Answer());
}

}  // namespace qlora
