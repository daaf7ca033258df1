// The public facade: a model that generates and is evaluated.
#include "qlora/model.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "adapter/combined_adapter.h"
#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/stopwatch.h"
#include "data/batch_stream.h"
#include "data/dataset.h"
#include "decision/decision_wire.h"
#include "dist/agreement.h"
#include "dist/together.h"
#include "hub/hub_adapter.h"
#include "hub/hub_cache.h"
#include "inference/asked_questions.h"
#include "inference/cached_sequence.h"
#include "inference/continuation_scores.h"
#include "inference/dataset_loss.h"
#include "inference/decision_evaluation.h"
#include "inference/decision_source.h"
#include "inference/generation_config.h"
#include "inference/generation_memory.h"
#include "inference/sampler.h"
#include "inference/served_prompts.h"
#include "inference/stop_text.h"
#include "io/json.h"
#include "machine/simd_target.h"
#include "model/base_record.h"
#include "model/checkpoint.h"
#include "model/shared_options.h"
#include "objective/decision.h"
#include "objective/supervised.h"
#include "pass/decoder.h"
#include "pass/eval_memory.h"
#include "prompt/chat_template_load.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/lookup_tables.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

// Rows of one pass over a prompt: enough for full speed, few enough for little memory.
constexpr std::int64_t kPrefillRows = 512;

// True where the weights are those of a merged adapter, which 4 bits would change again.
bool UsesMerged(const ModelOptions& options, const std::filesystem::path& model_dir) {
  return options.load_in_4bit == "auto" && HoldsMergedWeights(model_dir);
}

// The form in which to hold the base: as the adapter was trained ("auto"), or as the options say.
// The model of the adapter's record is not used, only its form.
BaseRecord BaseOf(const ModelOptions& options, const AdapterSet& adapters,
                  const std::filesystem::path& model_dir) {
  const bool is_auto = options.load_in_4bit == "auto";
  if (is_auto && !adapters.empty()) {
    if (const std::optional<BaseRecord> base = LoadBaseRecord(adapters.first())) return *base;
  }
  const bool as_it_is = options.load_in_4bit == "false" || UsesMerged(options, model_dir);
  return {options.model_name_or_path, !as_it_is, options.quantization};
}

// The folder of the one adapter, or "".
std::string FolderOf(const AdapterSet& adapters) {
  return adapters.is_single() && std::filesystem::is_directory(adapters.first()) ? adapters.first()
                                                                                 : "";
}

// A low share says that the prompt does not end where the model would answer with a letter.
std::string WarnOfLabelMass(const DecisionResult& result) {
  constexpr double kLow = 0.5;
  if (!result.label_mass || *result.label_mass >= kLow) return "";
  return fmt::format(
      "the labels of the options have {:.1f} % of the probability of the next token: the model "
      "expects other text there, and another decision_template may suit it better",
      100 * *result.label_mass);
}

}  // namespace

// ---- The model.

// Members are initialized in the order of their declaration, and later ones need earlier ones: the
// tokenizer before the prompts.
class Model::Impl {
 public:
  Impl(Context& context, const ModelOptions& options, const AdapterSet& adapters,
       const BackendFactory& backends,
       const std::function<void(std::int64_t, std::int64_t)>& progress)
      : dir_(ResolveModelDir(options.model_name_or_path)),
        context_(context),
        config_(LoadDecoderConfig(dir_)),
        tokenizer_(Tokenizer::Load(dir_, adapters.first())),
        precision_(ParsePrecision(options.compute_dtype, backends)),
        backend_(backends.Make(context, precision_.activation)),
        prompts_(options.chat, adapters.first(), dir_, tokenizer_),
        adapter_folder_(FolderOf(adapters)) {
    if (!adapters.empty()) adapter_ = LoadAdapters(adapters, config_, backend_->memory(), progress);
    BaseRecord base = BaseOf(options, adapters, dir_);
    LoadOptions load = LoadOptionsOf(base);
    load.progress = progress;
    if (adapter_) load.replaced = adapter_->replaced();
    if (options.copy_weights) {
      load.use = WeightUse::kGeneration;
      // Copies in the order that generation reads fastest, where they take less than half of what
      // is free; otherwise the file is read in place.
      const WeightSizes sizes = PlanWeights(context, *backend_, dir_, config_, load);
      if (sizes.owned + sizes.mapped >= backend_->memory().Available() / 2)
        load.use = WeightUse::kTraining;
    }
    weights_ = LoadWeights(context, *backend_, dir_, config_, load);
    // A form that the adapter's record has, and a file in blocks has not, was not asked for.
    const bool is_asked = options.load_in_4bit != "auto" || adapters.empty();
    if (is_asked || weights_.sizes.block_formats.empty()) AdoptStoredForm(base, weights_.sizes);
    if (adapter_) {
      adapter_->FoldTables(weights_);
      // The tables of an adapter may have rows for more tokens, or for fewer.
      config_.vocab_size = adapter_->vocab_size();
    }
    AddNotes(options, adapters);
    decisions_ = FindDecisionSource(adapters.first(), dir_);
    if (decisions_ && !decisions_->file.labels.empty()) {
      CheckDecisionFile(decisions_->file, DecisionTokenizer(tokenizer_),
                        std::filesystem::path(decisions_->name).parent_path());
    }
    memory_.emplace(*backend_, config_, weights_, precision_, AdaptersOf(adapter()));
  }

  // One pass over the prompt, then one for each token.
  GenerateReport Generate(const PromptText& prompt, const GenerateOptions& options,
                          const std::function<bool(std::string_view)>& on_text) {
    std::vector<std::int32_t> ids = EncodePrompt(tokenizer_, prompt);
    if (ids.empty() && tokenizer_.bos_id()) ids = {*tokenizer_.bos_id()};
    CheckPrompt(ids, options);
    const auto prompt_rows = static_cast<std::int64_t>(ids.size());
    // Positions of the prompt and its answer, at most those of the model.
    const std::int64_t capacity =
        prompt_rows +
        std::min(options.max_new_tokens, config_.max_position_embeddings - prompt_rows);

    const std::int64_t rows = std::min(prompt_rows, kPrefillRows);
    std::unique_ptr<GenerationBuffers> buffers = memory_->Take(rows, capacity);
    UseNorms();
    CachedSequence sequence(buffers->decoder, adapter(), buffers->passes, rows,
                            buffers->state.state());
    Sampler sampler(options);
    Tokenizer::StreamDecoder stream(tokenizer_, true, ids);
    GenerateReport report;
    report.prompt_tokens = prompt_rows;

    StopText stop(options.stop);
    // Hands on text that is certain. Returns false when the answer ends here.
    const auto emit = [&](const std::string& piece) {
      report.text += piece;
      const bool wanted = piece.empty() || !on_text || on_text(piece);
      if (!wanted) report.stop_reason = StopReason::kCaller;
      if (stop.found()) report.stop_reason = StopReason::kStopText;
      return wanted && !stop.found();
    };
    // The reason if nothing else ends the answer.
    report.stop_reason = options.max_new_tokens > capacity - prompt_rows
                             ? StopReason::kContext
                             : StopReason::kMaxNewTokens;
    const Stopwatch watch;
    const auto next = [&](std::span<const float> logits) -> std::optional<std::int32_t> {
      if (report.new_tokens == 0) report.prefill_seconds = watch.seconds();
      // The number of new tokens numbers the draws, so a seed gives the same answer again.
      const std::int32_t token = sampler.Next(logits, ids, report.new_tokens);
      ids.push_back(token);
      ++report.new_tokens;
      if (prompts_.IsEnd(token)) {
        report.stopped_at_eos = true;
        report.stop_reason = StopReason::kEos;
        return std::nullopt;
      }
      return emit(stop.Add(stream.Add(token))) ? std::optional(token) : std::nullopt;
    };
    // A copy of the prompt, because its tokens are appended to.
    sequence.Generate(std::vector(ids), capacity - prompt_rows, next);
    // The text that was held back because a character or a stop text might have followed.
    if (!stop.found() && report.stop_reason != StopReason::kCaller) {
      std::string held = stop.Add(stream.Finish());
      held += stop.Finish();
      emit(held);
    }
    report.decode_seconds = watch.seconds() - report.prefill_seconds;
    memory_->Keep(std::move(buffers));
    return report;
  }

  // Lays the data out as in training, unless the options ask for the layout of the model alone or
  // name a template.
  EvalResult Evaluate(const EvalOptions& options,
                      const std::function<void(std::int64_t, std::int64_t)>& progress,
                      const std::function<void(std::int64_t, std::int64_t)>& reading) {
    if (options.without_adapter && adapter_ && adapter_->replaced() != nullptr) {
      ThrowInvalidInput(
          "the adapter brings '{}', which takes the place of the model's when it is loaded; "
          "evaluate the base without --adapter",
          adapter_->replaced()->begin()->first);
    }
    memory_->Free();  // an evaluation has memory of its own
    const DataLimits limits{VocabularyOf(options.without_adapter), config_.max_position_embeddings};
    const bool keeps = !options.raw && !prompts_.template_given();
    const std::optional<PromptLayout> recorded = recorded_layout();
    DataOptions data = ToDataOptions(options.reading, options.dataset, limits,
                                     keeps ? recorded : std::nullopt, DataPurpose::kEvaluation);
    data.decision.space = SpaceOf(data.decision.decision_template);
    CheckUnweighted(data.sources, "dataset");
    const auto chat = LoadChatTemplate(prompts_.chat_fields(), tokenizer_, ChatClock::kFixed);
    const Dataset dataset = MakeTogether(context_.communicator(), [&] {
      return Dataset::Open(data, tokenizer_, chat.get(), &context_, reading);
    });
    AgreeOnEvaluation(dataset, options.without_adapter);
    const bool decides = dataset.layout().kind == PromptLayout::Kind::kDecision;
    EvalResult result = decides ? EvaluateDecisions(dataset, data, options, progress)
                                : EvaluateText(dataset, options, progress);
    if (!std::isfinite(result.loss)) {
      ThrowRuntime("the loss is {}: base or adapter is damaged, or of another model", result.loss);
    }
    const DataReport& report = dataset.report();
    result.data = RenderReport(report);
    result.layout = DescribeLayout(dataset.layout());
    if (data.layout.recorded == dataset.layout()) result.layout += prompts_.AsTrained();
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

  // Answers a request (docs/decisions.md) as JSON text.
  std::string Decide(std::string_view text, const DecideOptions& options) {
    memory_->Free();
    const DecisionRequest request = ParseDecisionRequest(text, "request");
    DecisionOptions reading;
    reading.decision_template = options.decision_template;
    reading.space = SpaceOf(options.decision_template);
    const PromptLayout layout = DecisionLayout(reading);
    const DecisionEncoder encoder(layout.prompt_template, reading, tokenizer_);
    AskedQuestions asked(encoder);
    std::vector<AnsweredQuestion> questions;
    for (const Question& question : request.decision.questions) {
      const std::size_t n = question.options.size();
      // No answer is known; what is computed does not depend on it.
      questions.push_back({std::ssize(questions), std::vector(n, 1 / static_cast<double>(n))});
    }
    asked.Add(request.decision, questions, 0);
    if (asked.longest() > config_.max_position_embeddings) {
      ThrowInvalidInput("the prompt has {} tokens; this model reads at most {}", asked.longest(),
                        config_.max_position_embeddings);
    }
    const DatasetSums sums = Ask(asked, false, {});
    const Temperatures temperatures = TemperaturesOf(options.decision_temperature, layout);
    std::vector<std::vector<double>> probabilities;
    for (Prediction& row : asked.Answers(sums, temperatures).rows) {
      probabilities.push_back(std::move(row.probabilities));
    }
    const std::string name = request.model.empty() ? dir_.filename().string() : request.model;
    return FormatJson(DecisionAnswer(request, probabilities, name, asked.prompt_tokens()));
  }

  std::vector<std::vector<ContinuationScore>> Score(
      std::span<const ScoreRequest> requests, bool without_adapter,
      const std::function<void(std::int64_t, std::int64_t)>& progress) {
    if (requests.empty()) return {};
    memory_->Free();
    DecoderConfig config = config_;
    if (without_adapter) config.vocab_size = weights_.embed.rows();
    const std::vector<ScoreRows> rows =
        LayOutScores(requests, config.max_position_embeddings, config.vocab_size);
    std::int64_t longest = 0;
    for (const ScoreRows& one : rows) longest = std::max(longest, LongestSequence(one.sample));
    const Decoder decoder(*backend_, config, weights_, precision_, longest);
    UseNorms();
    const std::vector<ContinuationScore> scores =
        RunScores(decoder, without_adapter ? nullptr : adapter(), rows, progress);
    std::vector<std::vector<ContinuationScore>> result;
    auto next = scores.begin();
    for (const ScoreRequest& request : requests) {
      const auto end = next + std::ssize(request.continuations);
      result.emplace_back(next, end);
      next = end;
    }
    return result;
  }

  std::optional<std::int32_t> start_token() const {
    return tokenizer_.bos_id() ? tokenizer_.bos_id() : tokenizer_.eos_id();
  }

  const std::filesystem::path& dir() const { return dir_; }
  const ServedPrompts& prompts() const { return prompts_; }

  const std::string& adapter_folder() const { return adapter_folder_; }

  const std::vector<std::string>& notes() const { return notes_; }

  std::int64_t context_length() const { return config_.max_position_embeddings; }

  std::int64_t CountTokens(std::string_view text, bool add_special_tokens) const {
    return std::ssize(tokenizer_.Encode(text, add_special_tokens));
  }

  std::vector<std::int32_t> Tokenize(std::string_view text, bool add_special_tokens) const {
    return tokenizer_.Encode(text, add_special_tokens);
  }

  std::string Detokenize(std::span<const std::int32_t> ids, bool special_tokens) const {
    // Decode passes over unknown ids.
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < tokenizer_.vocab_size()) continue;
      ThrowInvalidInput("ids: {} is not a token id of this model, which has {}", id,
                        tokenizer_.vocab_size());
    }
    return tokenizer_.Decode(ids, !special_tokens);
  }

  std::vector<std::string> stop_tokens() const {
    std::vector<std::string> texts;
    for (const std::int32_t id : prompts_.ends()) texts.push_back(tokenizer_.TokenText(id));
    return texts;
  }

 private:
  // The base's own tables may have fewer rows, or more, than those of the adapter.
  std::int64_t VocabularyOf(bool without_adapter) const {
    return without_adapter ? weights_.embed.rows() : config_.vocab_size;
  }
  const LoraAdapter* AdapterFor(bool without_adapter) const {
    return without_adapter ? nullptr : adapter();
  }
  RankPlace place() const {
    const Communicator& ranks = context_.communicator();
    return {.rank = ranks.rank(), .split = {.replicas = ranks.size()}};
  }

  EvalResult EvaluateText(const Dataset& dataset, const EvalOptions& options,
                          const std::function<void(std::int64_t, std::int64_t)>& progress) {
    DecoderConfig config = config_;
    config.vocab_size = VocabularyOf(options.without_adapter);
    const DataReport& report = dataset.report();
    const Decoder decoder(*backend_, config, weights_, precision_, report.longest);
    const std::int64_t rows = EvalRows(report.largest);
    Arena memory = ReserveEvaluation(decoder, AdaptersOf(adapter()), rows,
                                     UnfoldedRows(rows, report.unfolding));
    UseNorms();
    const Supervised objective;
    DatasetSums sums = *EvaluateDataset(
        context_.communicator(), place(), decoder, AdapterFor(options.without_adapter), objective,
        ListOf(dataset), options.per_token, memory, [&](std::int64_t done, std::int64_t total) {
          if (progress) progress(done, total);
          return true;
        });
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

  // Asks the questions of each record, in the order of the records.
  EvalResult EvaluateDecisions(const Dataset& dataset, const DataOptions& data,
                               const EvalOptions& options,
                               const std::function<void(std::int64_t, std::int64_t)>& progress) {
    if (!dataset.has_one_layout()) {
      ThrowInvalidInput("dataset: evaluate files of questions apart from other files");
    }
    const PromptLayout& layout = dataset.layout();
    const DecisionEncoder encoder(layout.prompt_template, data.decision, tokenizer_);
    AskedQuestions asked(encoder, options.permutations == "all");
    Together(context_.communicator(), [&] { AskAll(dataset, encoder, asked); });
    const DatasetSums sums = Ask(asked, options.without_adapter, progress);
    Temperatures temperatures;
    if (!options.without_adapter || !options.decision_temperature.empty()) {
      temperatures = TemperaturesOf(options.decision_temperature, layout);
    }
    const std::vector<double> values = DecisionObjective().Values(sums.sums, sums.totals);
    EvalResult result;
    result.loss = values.front();
    result.perplexity = std::exp(result.loss);
    result.token_accuracy = values[1];
    result.tokens = sums.totals.supervised;
    result.sequences = dataset.size();
    result.seconds = sums.seconds;
    result.decision = JudgeDecisions(asked, sums, temperatures, options.ece_bins);
    result.decision->decision_template = layout.prompt_template;
    result.decision->labels = DecisionTokenizer(tokenizer_, data.decision.space).LabelTexts();
    return result;
  }

  DatasetSums Ask(const AskedQuestions& asked, bool without_adapter,
                  const std::function<void(std::int64_t, std::int64_t)>& progress) {
    DecoderConfig config = config_;
    config.vocab_size = VocabularyOf(without_adapter);
    if (asked.largest_id() >= config.vocab_size) {
      ThrowInvalidInput("token id {} ('{}') is beyond the model's vocabulary of {}",
                        asked.largest_id(), tokenizer_.TokenText(asked.largest_id()),
                        config.vocab_size);
    }
    const Decoder decoder(*backend_, config, weights_, precision_, asked.longest());
    const std::int64_t rows = EvalRows(asked.largest());
    Arena memory = ReserveEvaluation(decoder, AdaptersOf(adapter()), rows,
                                     UnfoldedRows(rows, asked.unfolding()));
    UseNorms();
    return *asked.Run(context_.communicator(), place(), decoder, AdapterFor(without_adapter),
                      memory, [&](std::int64_t done, std::int64_t total) {
                        if (progress) progress(done, total);
                        return true;
                      });
  }

  // The layout of the training, by the files of this program and others.
  std::optional<PromptLayout> recorded_layout() const {
    return decisions_ ? decisions_->layout() : prompts_.recorded();
  }
  // Of a template that the user names, the prompt has its spaces itself.
  PromptSpace SpaceOf(const std::string& given_template) const {
    return decisions_ && given_template.empty() ? decisions_->space : PromptSpace::kOfPrompt;
  }
  // The layout of requests: the user's template, that of the training, or the usual one.
  PromptLayout DecisionLayout(const DecisionOptions& reading) const {
    const std::optional<PromptLayout> recorded = recorded_layout();
    PromptLayout layout = {.kind = PromptLayout::Kind::kDecision,
                           .format = RecordFormat::kDecision};
    if (recorded && recorded->kind == layout.kind) layout = *recorded;
    const auto chat = LoadChatTemplate(prompts_.chat_fields(), tokenizer_, ChatClock::kFixed);
    return WithDecisionTemplate(std::move(layout), reading, tokenizer_, chat.get());
  }
  // Temperatures hold for the prompts that they were fitted to.
  Temperatures TemperaturesOf(const std::string& given, const PromptLayout& layout) const {
    if (!given.empty()) return ParseTemperatures(given, "decision_temperature");
    const bool fits = decisions_ && decisions_->file.decision_template == layout.prompt_template;
    return fits ? decisions_->file.temperatures : Temperatures();
  }

  // Ranks that share an evaluation must compute the same.
  void AgreeOnEvaluation(const Dataset& dataset, bool without_adapter) {
    if (context_.communicator().is_alone()) return;
    const auto hash = [&](Memory& memory, const void* data, std::size_t bytes) {
      const HostBytes host(memory, data, bytes);
      return fmt::format("{:016x}", HashBytes({reinterpret_cast<const char*>(host.data()), bytes}));
    };
    // A vector that training changes throughout.
    const ConstMatrixView& norm = weights_.final_norm;
    Facts facts = {{"samples of dataset", fmt::format("{:016x}", dataset.fingerprint())},
                   {"weights of the model",
                    hash(backend_->memory(), norm.data, BytesOf(norm.dtype, norm.cols))},
                   {"type of products", NameOf(precision_.activation)},
                   {"instruction set of the kernels", NameOf(ActiveSimdTarget())}};
    if (adapter_ && !without_adapter) {
      const ConstMatrixView values = std::as_const(*adapter_).parameters();
      facts.emplace_back("values of the adapter",
                         hash(adapter_->memory(), values.data, BytesOf(values.dtype, values.cols)));
    }
    AgreeOn(context_.communicator(), facts);
  }

  void AddNotes(const ModelOptions& options, const AdapterSet& adapters) {
    notes_ = weights_.sizes.notes;
    notes_.push_back(NoteOtherTokenizer(dir_, adapters.first()));
    if (adapter_) {
      notes_.insert(notes_.end(), adapter_->notes().begin(), adapter_->notes().end());
    }
    if (options.load_in_4bit != "auto" && !weights_.sizes.block_formats.empty()) {
      notes_.push_back(NoteIdle4bit(weights_.sizes));
    }
    if (adapters.empty() && UsesMerged(options, dir_) && !weights_.sizes.stored_4bit) {
      notes_.push_back(
          "the weights have an adapter merged in and are used as they are; --load_in_4bit true "
          "rounds them to 4 bits");
    }
    std::erase(notes_, "");
  }

  const LoraAdapter* adapter() const { return adapter_ ? &*adapter_ : nullptr; }

  // Computes the row lengths that DoRA divides by. Once: neither base nor adapter changes.
  void UseNorms() {
    if (!has_norms_ && adapter_) RefreshNorms(*backend_, weights_, *adapter_);
    has_norms_ = true;
  }

  // Refuses what no pass can be run on, before memory is taken.
  void CheckPrompt(const std::vector<std::int32_t>& ids, const GenerateOptions& options) const {
    if (ids.empty()) ThrowInvalidInput("the prompt is empty and this model has no BOS token");
    if (options.max_new_tokens < 1) {
      ThrowInvalidInput("max_new_tokens must be positive, found {}", options.max_new_tokens);
    }
    const auto rows = static_cast<std::int64_t>(ids.size());
    if (rows >= config_.max_position_embeddings) {
      ThrowInvalidInput("the prompt has {} tokens; this model reads at most {}", rows,
                        config_.max_position_embeddings);
    }
    for (const std::int32_t id : ids) {
      if (id >= config_.vocab_size) {
        ThrowInvalidInput("token id {} ('{}') is beyond the model's vocabulary of {}", id,
                          tokenizer_.TokenText(id), config_.vocab_size);
      }
    }
  }

  std::filesystem::path dir_;
  Context& context_;
  DecoderConfig config_;
  Tokenizer tokenizer_;
  Precision precision_;
  std::unique_ptr<Backend> backend_;
  ServedPrompts prompts_;
  std::string adapter_folder_;
  std::optional<DecisionSource> decisions_;
  std::optional<LoraAdapter> adapter_;
  DecoderWeights weights_;
  std::optional<GenerationMemory> memory_;
  bool has_norms_ = false;
  std::vector<std::string> notes_;
};

// ---- The face: forwards to Impl.

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(Model&& other) noexcept = default;
Model& Model::operator=(Model&& other) noexcept = default;

Model Model::Load(Context& context, const ModelOptions& options,
                  const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  const BackendFactory::Ptr backends = BackendFactory::ForJob(context, options.device);
  const AdapterSet adapters = ResolveAdapters(options.adapter, options.adapter_rank);
  return Model(std::make_unique<Impl>(context, options, adapters, *backends, progress));
}

std::string Model::adapter_folder() const { return impl_->adapter_folder(); }

std::vector<std::string> Model::notes() const { return impl_->notes(); }

GenerateReport Model::Generate(std::string_view prompt, const GenerateOptions& options,
                               const std::function<bool(std::string_view piece)>& on_text,
                               bool add_special_tokens) {
  return impl_->Generate({std::string(prompt), add_special_tokens}, options, on_text);
}

GenerateReport Model::Generate(const PromptText& prompt, const GenerateOptions& options,
                               const std::function<bool(std::string_view piece)>& on_text) {
  return impl_->Generate(prompt, options, on_text);
}

std::string_view StopReasonName(StopReason reason) {
  switch (reason) {
    case StopReason::kEos:
      return "eos";
    case StopReason::kStopText:
      return "stop";
    case StopReason::kMaxNewTokens:
      return "max_new_tokens";
    case StopReason::kContext:
      return "context";
    case StopReason::kCaller:
      return "caller";
  }
  return "";
}

std::string Model::TakeGenerationConfig(OptionTable& options) const {
  return qlora::TakeGenerationConfig(impl_->dir(), options);
}

std::int64_t Model::context_length() const { return impl_->context_length(); }

std::int64_t Model::CountTokens(std::string_view text, bool add_special_tokens) const {
  return impl_->CountTokens(text, add_special_tokens);
}

std::vector<std::int32_t> Model::Tokenize(std::string_view text, bool add_special_tokens) const {
  return impl_->Tokenize(text, add_special_tokens);
}

std::string Model::Detokenize(std::span<const std::int32_t> ids, bool special_tokens) const {
  return impl_->Detokenize(ids, special_tokens);
}

std::optional<std::int32_t> Model::start_token() const { return impl_->start_token(); }

bool Model::has_chat_template() const { return impl_->prompts().chat() != nullptr; }

std::string Model::ChatPrompt(std::string_view messages, std::string_view tools) const {
  return impl_->prompts().ChatPrompt(messages, tools);
}

std::string Model::prompt_layout() const { return impl_->prompts().Describe(); }

PromptText Model::Prompt(std::string_view user, std::string_view system) const {
  return impl_->prompts().Prompt(user, system);
}

PromptText Model::PromptOfRecord(std::string_view record) const {
  return impl_->prompts().OfRecord(record);
}

PromptText Model::PromptOfChat(std::string_view messages, std::string_view tools) const {
  return impl_->prompts().OfChat(messages, tools);
}

bool Model::has_turns() const { return impl_->prompts().has_turns(); }

std::vector<std::string> Model::stop_tokens() const { return impl_->stop_tokens(); }

std::vector<std::vector<ContinuationScore>> Model::Score(
    std::span<const ScoreRequest> requests, bool without_adapter,
    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return impl_->Score(requests, without_adapter, progress);
}

EvalResult Model::Evaluate(const EvalOptions& options,
                           const std::function<void(std::int64_t, std::int64_t)>& progress,
                           const std::function<void(std::int64_t, std::int64_t)>& reading) {
  return impl_->Evaluate(options, progress, reading);
}

std::string Model::Decide(std::string_view request, const DecideOptions& options) {
  return impl_->Decide(request, options);
}

}  // namespace qlora
