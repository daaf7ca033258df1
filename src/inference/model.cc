// The public facade: a model that generates and is evaluated.
#include "qlora/model.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "hub/hub_adapter.h"
#include "inference/continuation_scores.h"
#include "inference/generation_config.h"
#include "inference/loaded_model.h"
#include "inference/model_decisions.h"
#include "inference/model_evaluation.h"
#include "inference/text_answers.h"
#include "pass/state_pool.h"

namespace qlora {

class Model::Impl {
 public:
  Impl(Context& context, const ModelOptions& options, const AdapterSet& adapters,
       const BackendFactory& backends,
       const std::function<void(std::int64_t, std::int64_t)>& progress)
      : model_(context, options, adapters, backends, progress) {}

  LoadedModel& model() { return model_; }

  // All prompts at the same time, as many as have room.
  std::vector<GenerateReport> Generate(std::span<const PromptText> prompts,
                                       const GenerateOptions& options, const OnText& on_text) {
    std::vector<EngineRequest> requests;
    GenerationSize size;
    for (const PromptText& prompt : prompts) {
      const EngineRequest& request = requests.emplace_back(RequestFor(prompt, options));
      const std::int64_t rows = std::ssize(request.prompt);
      size.rows = std::min(size.rows + rows, kMostPromptRows);
      size.positions = std::max(size.positions, rows + request.options.max_new_tokens);
    }
    if (requests.empty()) return {};
    size.slots = SlotsFor(std::ssize(requests), size.positions);
    std::unique_ptr<GenerationBuffers> buffers = model_.memory->Take(size);
    model_.UseNorms();
    Engine engine(buffers->decoder, buffers->passes, buffers->pool.pool(), buffers->size.rows);
    std::vector<GenerateReport> reports = WriteAnswers(engine, requests, model_.tokenizer, on_text);
    for (std::size_t i = 0; i < reports.size(); ++i) {
      const bool is_cut = requests[i].options.max_new_tokens < options.max_new_tokens;
      StopReason& reason = reports[i].stop_reason;
      if (is_cut && reason == StopReason::kMaxNewTokens) reason = StopReason::kContext;
    }
    model_.memory->Keep(std::move(buffers));
    return reports;
  }

  std::vector<std::vector<ContinuationScore>> Score(
      std::span<const ScoreRequest> requests,
      const std::function<void(std::int64_t, std::int64_t)>& progress) {
    if (requests.empty()) return {};
    model_.memory->Free();
    const DecoderConfig& config = model_.config;
    const std::vector<ScoreRows> rows =
        LayOutScores(requests, config.max_position_embeddings, config.vocab_size);
    std::int64_t longest = 0;
    for (const ScoreRows& one : rows) longest = std::max(longest, LongestSequence(one.sample));
    const Decoder decoder(*model_.backend, config, model_.weights, model_.precision, longest);
    model_.UseNorms();
    const std::vector<ContinuationScore> scores =
        RunScores(decoder, model_.AdapterFor(false), rows, progress);
    std::vector<std::vector<ContinuationScore>> result;
    auto next = scores.begin();
    for (const ScoreRequest& request : requests) {
      const auto end = next + std::ssize(request.continuations);
      result.emplace_back(next, end);
      next = end;
    }
    return result;
  }

 private:
  EngineRequest RequestFor(const PromptText& prompt, const GenerateOptions& options) const {
    std::vector<std::int32_t> ids = EncodePrompt(model_.tokenizer, prompt);
    if (ids.empty() && model_.tokenizer.bos_id()) ids = {*model_.tokenizer.bos_id()};
    CheckPrompt(ids, options);
    EngineRequest request{.prompt = ids,
                          .adapter = model_.AdapterFor(false),
                          .options = options,
                          .ends = model_.prompts.ends()};
    // Prompt and answer have at most the positions of the model.
    const std::int64_t room = model_.config.max_position_embeddings - std::ssize(ids);
    request.options.max_new_tokens = std::min(options.max_new_tokens, room);
    return request;
  }

  // Sequences that are written at the same time, in half of the memory that is free.
  std::int64_t SlotsFor(std::int64_t requests, std::int64_t positions) const {
    constexpr std::int64_t kMostSlots = 16;
    const std::size_t bytes = BytesOfPool(model_.config, model_.precision, 1, positions);
    const std::size_t fit =
        model_.backend->memory().Available() / 2 / std::max<std::size_t>(1, bytes);
    const auto most = static_cast<std::int64_t>(std::min<std::size_t>(fit, kMostSlots));
    return std::clamp<std::int64_t>(most, 1, requests);
  }

  // Refuses what no pass can be run on, before memory is taken.
  void CheckPrompt(const std::vector<std::int32_t>& ids, const GenerateOptions& options) const {
    if (ids.empty()) ThrowInvalidInput("the prompt is empty and this model has no BOS token");
    if (options.max_new_tokens < 1) {
      ThrowInvalidInput("max_new_tokens must be positive, found {}", options.max_new_tokens);
    }
    const auto rows = static_cast<std::int64_t>(ids.size());
    const std::int64_t most = model_.config.max_position_embeddings;
    if (rows >= most) throw PromptTooLong(rows, most);
    for (const std::int32_t id : ids) CheckToken(id, model_.config.vocab_size, model_.tokenizer);
  }

  LoadedModel model_;
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

std::string Model::adapter_folder() const { return impl_->model().adapter_folder; }

std::vector<std::string> Model::notes() const { return impl_->model().notes; }

ModelOptions Model::base_options() const { return impl_->model().BaseOptions(); }

GenerateReport Model::Generate(std::string_view prompt, const GenerateOptions& options,
                               const std::function<bool(std::string_view piece)>& on_text,
                               bool add_special_tokens) {
  return Generate(PromptText{std::string(prompt), add_special_tokens}, options, on_text);
}

GenerateReport Model::Generate(const PromptText& prompt, const GenerateOptions& options,
                               const std::function<bool(std::string_view piece)>& on_text) {
  const auto each = [&](std::int64_t, std::string_view piece) {
    return !on_text || on_text(piece);
  };
  return std::move(impl_->Generate({&prompt, 1}, options, each).front());
}

std::vector<GenerateReport> Model::Generate(
    std::span<const PromptText> prompts, const GenerateOptions& options,
    const std::function<bool(std::int64_t i, std::string_view piece)>& on_text) {
  return impl_->Generate(prompts, options, on_text);
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
  return qlora::TakeGenerationConfig(impl_->model().dir, options);
}

std::int64_t Model::context_length() const { return impl_->model().config.max_position_embeddings; }

std::int64_t Model::CountTokens(std::string_view text, bool add_special_tokens) const {
  return std::ssize(Tokenize(text, add_special_tokens));
}

std::vector<std::int32_t> Model::Tokenize(std::string_view text, bool add_special_tokens) const {
  return impl_->model().tokenizer.Encode(text, add_special_tokens);
}

std::string Model::Detokenize(std::span<const std::int32_t> ids, bool special_tokens) const {
  const Tokenizer& tokenizer = impl_->model().tokenizer;
  // Decode passes over unknown ids.
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < tokenizer.vocab_size()) continue;
    ThrowInvalidInput("ids: {} is not a token id of this model, which has {}", id,
                      tokenizer.vocab_size());
  }
  return tokenizer.Decode(ids, !special_tokens);
}

std::optional<std::int32_t> Model::start_token() const {
  const Tokenizer& tokenizer = impl_->model().tokenizer;
  return tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
}

bool Model::has_chat_template() const { return impl_->model().prompts.chat() != nullptr; }

std::string Model::ChatPrompt(std::string_view messages, std::string_view tools) const {
  return impl_->model().prompts.ChatPrompt(messages, tools);
}

std::string Model::prompt_layout() const { return impl_->model().prompts.Describe(); }

PromptText Model::Prompt(std::string_view user, std::string_view system) const {
  return impl_->model().prompts.Prompt(user, system);
}

PromptText Model::PromptOfRecord(std::string_view record) const {
  return impl_->model().prompts.OfRecord(record);
}

PromptText Model::PromptOfChat(std::string_view messages, std::string_view tools) const {
  return impl_->model().prompts.OfChat(messages, tools);
}

bool Model::has_turns() const { return impl_->model().prompts.has_turns(); }

std::vector<std::string> Model::stop_tokens() const {
  const LoadedModel& model = impl_->model();
  std::vector<std::string> texts;
  for (const std::int32_t id : model.prompts.ends()) texts.push_back(model.tokenizer.TokenText(id));
  return texts;
}

std::vector<std::vector<ContinuationScore>> Model::Score(
    std::span<const ScoreRequest> requests,
    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return impl_->Score(requests, progress);
}

EvalResult Model::Evaluate(const EvalOptions& options,
                           const std::function<void(std::int64_t, std::int64_t)>& progress,
                           const std::function<void(std::int64_t, std::int64_t)>& reading) {
  return EvaluateModel(impl_->model(), options, progress, reading);
}

std::string Model::Decide(std::string_view request, const DecideOptions& options) {
  return AnswerRequest(impl_->model(), request, options);
}

}  // namespace qlora
