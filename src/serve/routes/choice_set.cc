#include "serve/routes/choice_set.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"
#include "serve/request_fields.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

// Of an answer that waits: its objects and texts that end it.
constexpr std::size_t kAnswerBytes = 4096;
// Of its text, as parts and as JSON.
constexpr std::size_t kTextCopies = 4;
// A token of a prompt with its log-probability, and each of the likeliest beside it: in the engine
// and as the answer takes it.
constexpr std::size_t kScoredBytes = 2 * 96;
constexpr std::size_t kTopBytes = 2 * 16;

constexpr const char* kFault = "a fault within the server ended the answer; its log has the reason";
constexpr const char* kRemedy =
    "ask for fewer answers and log-probabilities, or shorten the prompt";

// What answers hold from here on; `choices` of them share a prompt.
std::size_t BytesOf(const std::vector<GenerationRequest>& requests, std::int64_t choices) {
  std::size_t bytes = 0;
  for (std::int64_t i = 0; i < std::ssize(requests); ++i) {
    const GenerationRequest& request = requests[i];
    const std::size_t tokens = request.prompt.size();
    bytes += kAnswerBytes + request.logit_bias.size() * sizeof(request.logit_bias[0]);
    if (i % choices == 0) bytes += tokens * sizeof(std::int32_t);
    if (!request.wants_prompt_logprobs) continue;
    const auto top = static_cast<std::size_t>(request.top_logprobs.value_or(0));
    bytes += tokens * (kScoredBytes + top * kTopBytes);
  }
  return bytes;
}

void CheckLength(const GenerationRequest& request) {
  const std::int64_t most = request.options.max_new_tokens;
  if (request.min_tokens <= most) return;
  RefuseField("min_tokens", fmt::format("expected at most {}, the tokens that the answer has at "
                                        "most, found {}",
                                        most, request.min_tokens));
}

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
              fmt::format("{} with n = {} are {} answers, and this server has room for {} at "
                          "the same time (max_sequences and max_queue); ask for fewer in a request",
                          Counted(prompts, "prompt"), n, prompts * n, most));
}

const char* FinishReason(StopReason reason) {
  return reason == StopReason::kEos || reason == StopReason::kStopText ? "stop" : "length";
}

void ChoiceSet::Start(std::vector<GenerationRequest> requests, std::int64_t choices) {
  CheckLength(requests.front());
  held_->Add(BytesOf(requests, choices), "", kRemedy);
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
      Begin();
    } catch (...) {
      has_ended_ = true;
      CancelAll();
      throw;
    }
  }
  reply_->OnGone([set = weak_from_this()] {
    const std::shared_ptr<ChoiceSet> here = set.lock();
    if (here == nullptr) return;
    const std::lock_guard lock(here->mutex_);
    if (std::exchange(here->has_ended_, true)) return;
    here->CancelAll();
    // Who saw nothing of an answer does not know its id.
    if (here->server_.request_log != nullptr && here->stream_) here->Leave();
  });
}

// What is thrown ends these answers, and no others of the engine.
template <typename Work>
void ChoiceSet::RunUnlessEnded(const Work& work) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return;
  try {
    work();
  } catch (...) {
    const ApiError error = CaughtError(kFault);
    if (!error.detail.empty()) server_.log(fmt::format("error: {}", error.detail));
    EndAll(error);
  }
}

GenerationListener ChoiceSet::ListenerOf(std::int64_t i) {
  const std::shared_ptr<ChoiceSet> self = shared_from_this();
  return {.on_piece =
              [self, i](GenerationPiece piece) {
                self->RunUnlessEnded([&] {
                  self->held_->Add(kTextCopies * piece.text.size(), "max_tokens", kRemedy);
                  self->Add(i, std::move(piece));
                });
              },
          .on_end =
              [self, i](const GenerationEnd& end) {
                self->RunUnlessEnded([&] { self->EndOne(i, end); });
              }};
}

HttpRoom ChoiceSet::RoomFor(std::size_t bytes) {
  held_->Add(bytes, "", kRemedy);
  return {held_, bytes};
}

void ChoiceSet::SendWhole(HttpResponse response) {
  const std::size_t bytes = response.body.size();
  held_->AtLeast(bytes, "max_tokens", kRemedy);
  response.room = {held_, bytes};
  reply_->Send(std::move(response));
}

void ChoiceSet::EndOne(std::int64_t i, const GenerationEnd& end) {
  if (!end.error.empty()) {
    if (!end.field.empty()) return EndAll(ApiError(400, end.field + ": " + end.error, end.field));
    if (server_.stops) return EndAll(ApiError(503, "the server is stopping", "", "stopping"));
    server_.log(fmt::format("error: {}", end.error));
    return EndAll(ApiError(500, kFault));
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
