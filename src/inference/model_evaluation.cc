#include "inference/model_evaluation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "data/batch_stream.h"
#include "data/dataset.h"
#include "dist/agreement.h"
#include "dist/together.h"
#include "inference/dataset_evaluation.h"
#include "inference/decision_evaluation.h"
#include "inference/model_decisions.h"
#include "inference/model_passes.h"
#include "inference/preference_evaluation.h"
#include "machine/simd_target.h"
#include "model/shared_options.h"
#include "objective/supervised.h"
#include "preference/preference_fields.h"
#include "prompt/chat_template_load.h"

namespace qlora {
namespace {

// Ranks that share an evaluation must compute the same.
void AgreeOnEvaluation(LoadedModel& model, const Dataset& dataset, bool without_adapter,
                       const LoraAdapter* reference) {
  if (model.context.communicator().is_alone()) return;
  const auto hash = [&](Memory& memory, const void* data, std::size_t bytes) {
    const HostBytes host(memory, data, bytes);
    return fmt::format("{:016x}", HashBytes({reinterpret_cast<const char*>(host.data()), bytes}));
  };
  // A vector that training changes throughout.
  const ConstMatrixView& norm = model.weights.final_norm;
  Facts facts = {{"samples of dataset", fmt::format("{:016x}", dataset.fingerprint())},
                 {"weights of the model",
                  hash(model.backend->memory(), norm.data, BytesOf(norm.dtype, norm.cols))},
                 {"type of products", ComputeTypeOf(model.precision)},
                 {"instruction set of the kernels", NameOf(ActiveSimdTarget())}};
  const auto add = [&](const char* name, const LoraAdapter* adapter) {
    if (adapter == nullptr) return;
    const ConstMatrixView values = adapter->parameters();
    facts.emplace_back(name,
                       hash(adapter->memory(), values.data, BytesOf(values.dtype, values.cols)));
  };
  add("values of the adapter", model.AdapterFor(without_adapter));
  add("values of the reference", reference);
  AgreeOn(model.context.communicator(), facts);
}

// The rows of the smallest table that reads the data.
std::int64_t VocabularyOf(const LoadedModel& model, const EvalOptions& options,
                          const std::optional<PreferenceLossOptions>& loss,
                          const std::optional<LoraAdapter>& reference) {
  const auto rows_of = [&](const LoraAdapter* adapter) {
    return model.ConfigFor(adapter).vocab_size;
  };
  const std::int64_t rows = rows_of(model.AdapterFor(options.without_adapter));
  if (!loss || !loss->needs_reference()) return rows;
  return std::min(rows, rows_of(reference ? &*reference : nullptr));
}

EvalResult EvaluateText(LoadedModel& model, const Dataset& dataset, const EvalOptions& options,
                        const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const DataReport& report = dataset.report();
  const ModelPasses passes(model, model.AdapterFor(options.without_adapter), report.longest,
                           report.largest, report.unfolding, progress);
  const Supervised objective;
  DatasetSums sums = *passes.meter().Evaluate(objective, dataset, {}, 0, options.per_token);
  const std::vector<double> values = objective.Values(sums.sums, sums.totals);
  EvalResult result;
  result.loss = values.front();
  const std::vector<MetricValue> metrics = MetricsOf(objective, values, false);
  result.perplexity = ValueOf(metrics, "perplexity");
  result.token_accuracy = ValueOf(metrics, "token_accuracy");
  result.tokens = sums.totals.supervised;
  result.sequences = dataset.size();
  result.seconds = sums.seconds;
  result.logprobs = std::move(sums.logprobs);
  result.token_ids = std::move(sums.token_ids);
  return result;
}

}  // namespace

// Lays the data out as in training, unless the options ask for the layout of the model alone or
// name a template.
EvalResult EvaluateModel(LoadedModel& model, const EvalOptions& options,
                         const std::function<void(std::int64_t, std::int64_t)>& progress,
                         const std::function<void(std::int64_t, std::int64_t)>& reading) {
  options.Check();
  if (options.without_adapter && model.adapter && model.adapter->replaced() != nullptr) {
    ThrowInvalidInput(
        "the adapter brings '{}', which takes the place of the model's when it is loaded; "
        "evaluate the base without --adapter",
        model.adapter->replaced()->begin()->first);
  }
  model.memory->Free();  // an evaluation has memory of its own
  Communicator& communicator = model.context.communicator();
  const std::optional<PreferenceLossOptions> loss = PreferenceLossOf(options);
  const std::optional<LoraAdapter> reference =
      MakeTogether(communicator, [&]() -> std::optional<LoraAdapter> {
        if (!loss) return {};
        return LoadReference(model, *loss, options);
      });
  const DataLimits limits{VocabularyOf(model, options, loss, reference),
                          model.config.max_position_embeddings};
  const bool keeps = !options.raw && !model.prompts.template_given();
  const std::optional<PromptLayout> recorded = RecordedLayout(model.decisions, model.prompts);
  ReadingFields reading_as = options.reading;
  if (loss) reading_as.preference = ReadingFor(*loss);
  DataOptions data = ToDataOptions(reading_as, options.dataset, limits,
                                   keeps ? recorded : std::nullopt, DataPurpose::kEvaluation);
  data.decision.space = SpaceOf(model.decisions, data.decision.decision_template);
  const std::vector<std::string> of_questions = OptionsOfQuestions(options);
  data.decision.given.insert(data.decision.given.begin(), of_questions.begin(), of_questions.end());
  CheckUnweighted(data.sources, "dataset");
  const auto chat =
      LoadChatTemplate(model.prompts.chat_fields(), model.tokenizer, ChatClock::kFixed);
  const Dataset dataset = MakeTogether(communicator, [&] {
    return Dataset::Open(data, model.tokenizer, chat.get(), &model.context, reading);
  });
  const LoraAdapter* other = reference ? &*reference : nullptr;
  AgreeOnEvaluation(model, dataset, options.without_adapter, other);
  const bool decides = dataset.layout().kind == PromptLayout::Kind::kDecision;
  EvalResult result =
      decides ? EvaluateDecisions(model, dataset, data, options, progress)
      : loss ? EvaluatePreferences(model, dataset, *loss, other, options, data.max_length, progress)
             : EvaluateText(model, dataset, options, progress);
  if (!std::isfinite(result.loss)) {
    ThrowRuntime("the loss is {}: base or adapter is damaged, or of another model", result.loss);
  }
  const DataReport& report = dataset.report();
  result.data = RenderReport(report);
  result.layout = DescribeLayout(dataset.layout());
  if (data.layout.recorded == dataset.layout()) result.layout += model.prompts.AsTrained();
  const auto warn = [&result](const std::string& text) {
    if (text.empty()) return;
    result.warning += (result.warning.empty() ? "" : "\nwarning: ") + text;
  };
  warn(WarnOfLength(options.reading, limits));
  for (const std::string& text : WarnOfFindings(report)) warn(text);
  warn(WarnOfLostRecords(report));
  const bool as_trained = recorded && !options.raw && !options.without_adapter;
  if (as_trained) warn(WarnOfOtherLayout(*recorded, dataset.layout()));
  if (decides) warn(WarnOfLabelMass(*result.decision));
  result.dropped = report.dropped_long;
  result.truncated = report.truncated;
  return result;
}

}  // namespace qlora
