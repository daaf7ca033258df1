#include "serve/routes/choice_set.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"
#include "serve/request_fields.h"
#include "serve/routes/routes.h"
#include "serve/served_models.h"

namespace qlora {
namespace {

// A token of a prompt that waits: as it was read, and twice within the engine.
constexpr std::size_t kPromptTokenBytes = 3 * sizeof(std::int32_t);

}  // namespace

OrderedJson UsageJson(const AnswerUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.new_tokens},
          {"total_tokens", usage.prompt_tokens + usage.new_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

void CheckAnswers(const GenerationService& service, std::int64_t prompts, std::int64_t n) {
  const std::int64_t most = service.most_answers();
  if (prompts * n <= most) return;
  RefuseField(n > 1 ? "n" : "prompt",
              fmt::format("{} with n = {} asks for {} answers, and this server has room for {} at "
                          "the same time (max_sequences and max_queue); ask for fewer in a request",
                          Counted(prompts, "prompt"), n, prompts * n, most));
}

const char* FinishReason(StopReason reason) {
  return reason == StopReason::kEos || reason == StopReason::kStopText ? "stop" : "length";
}

void ChoiceSet::Start(std::vector<GenerationRequest> requests, std::int64_t choices) {
  std::size_t tokens = 0;
  for (const GenerationRequest& request : requests) tokens += request.prompt.size();
  prompts_.emplace(requests.front().model->room);
  prompts_->Add(kPromptTokenBytes * tokens, "", "ask for fewer answers, or shorten the prompt");
  {
    // What comes meanwhile waits for Begin.
    const std::lock_guard lock(mutex_);
    choices_ = choices;
    open_ = std::ssize(requests);
    try {
      for (GenerationRequest& request : requests) {
        const std::int64_t i = std::ssize(ids_);
        ids_.push_back(server_.generation.Submit(std::move(request), ListenerOf(i)));
      }
    } catch (...) {
      has_ended_ = true;
      CancelAll();
      throw;
    }
    Begin();
  }
  reply_->OnGone([set = weak_from_this()] {
    const std::shared_ptr<ChoiceSet> here = set.lock();
    if (here == nullptr) return;
    const std::lock_guard lock(here->mutex_);
    if (std::exchange(here->has_ended_, true)) return;
    here->CancelAll();
    if (here->server_.request_log != nullptr) here->Leave();
  });
}

GenerationListener ChoiceSet::ListenerOf(std::int64_t i) {
  const std::shared_ptr<ChoiceSet> self = shared_from_this();
  return {.on_piece =
              [self, i](GenerationPiece piece) {
                const std::lock_guard lock(self->mutex_);
                if (self->has_ended_) return;
                try {
                  self->Add(i, std::move(piece));
                } catch (const ApiError& error) {
                  self->EndAll(error);
                }
              },
          .on_end =
              [self, i](const GenerationEnd& end) {
                const std::lock_guard lock(self->mutex_);
                if (!self->has_ended_) self->EndOne(i, end);
              }};
}

void ChoiceSet::EndOne(std::int64_t i, const GenerationEnd& end) {
  if (!end.error.empty()) {
    if (!end.field.empty()) return EndAll(ApiError(400, end.field + ": " + end.error, end.field));
    if (server_.stops) return EndAll(ApiError(503, "the server is stopping", "", "stopping"));
    server_.log(fmt::format("error: {}", end.error));
    return EndAll(
        ApiError(500, "a fault within the server ended the answer; its log has the reason"));
  }
  // Choices of one prompt share its tokens.
  if (i % choices_ == 0) {
    usage_.prompt_tokens += end.prompt_tokens;
    usage_.cached_tokens += end.cached_tokens;
  }
  usage_.new_tokens += end.new_tokens;
  End(i, end);
  if (--open_ > 0) return;
  has_ended_ = true;
  NoteAnswer(*reply_, {},
             fmt::format("{} + {} tokens, {} cached", usage_.prompt_tokens, usage_.new_tokens,
                         usage_.cached_tokens));
  Finish(usage_);
}

void ChoiceSet::EndAll(const ApiError& error) {
  has_ended_ = true;
  CancelAll();
  Fail(error);
}

void ChoiceSet::CancelAll() {
  for (const GenerationId id : ids_) server_.generation.Cancel(id);
}

}  // namespace qlora
