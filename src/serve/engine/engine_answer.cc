#include "serve/engine/engine_answer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/text.h"
#include "inference/sampler.h"
#include "qlora/error.h"
#include "serve/engine/logit_edits.h"
#include "serve/structured/grammar_edit.h"
#include "serve/token_bytes.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

constexpr const char* kNoToken = "no token of the model is left to go on with";

}  // namespace

EngineAnswer::EngineAnswer(ServedModelPtr model, GenerationRequest request,
                           GenerationListener listener, std::int64_t room)
    : model_(std::move(model)),
      request_(std::move(request)),
      listener_(std::move(listener)),
      is_cut_(request_.options.max_new_tokens > room),
      stream_(*model_->tokenizer, !request_.keeps_special_tokens, request_.prompt),
      stops_(std::move(request_.stops)) {
  request_.options.max_new_tokens = std::min(request_.options.max_new_tokens, room);
  end_.prompt_tokens = std::ssize(request_.prompt);
}

EngineRequest EngineAnswer::TakeRequest() {
  // A tokenizer may have ends that the model has no logits for, and never chooses.
  std::vector<std::int32_t> ends = model_->prompts->ends();
  std::erase_if(ends, [this](std::int64_t end) { return end >= model_->vocabulary; });
  LogitEdit edit = TakeLogitEdits(request_, ends);
  EngineRequest request{.prompt = request_.prompt,
                        .adapter = model_->adapter.get(),
                        .options = request_.options,
                        .ends = ends,
                        .top_logprobs = request_.top_logprobs,
                        .wants_prompt_logprobs = request_.wants_prompt_logprobs,
                        .keeps_prompt = request_.keeps_prompt};
  // Where none is wanted, the token that the engine chooses all the same is dropped.
  request.options.max_new_tokens = std::max<std::int64_t>(request.options.max_new_tokens, 1);
  // The engine would end all answers at logits of which none can be chosen.
  request.edit = [edit = std::move(edit), grammar = std::shared_ptr<GrammarEdit>(),
                  form = request_.format, ends, fault = fault_](
                     std::span<const std::int32_t> answer, std::span<float> logits) mutable {
    if (std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); })) {
      fault->error = kDamagedLogits;
    } else {
      try {
        if (form.grammar && !grammar) grammar = std::make_shared<GrammarEdit>(form, ends);
        if (edit) edit(answer, logits);
        if (grammar) grammar->Apply(answer, logits);
        const bool has_token = *std::ranges::max_element(logits) != kForbidden;
        if (!has_token && grammar && grammar->CanEnd()) {
          fault->is_end = true;
        } else if (!has_token) {
          *fault = {kNoToken, grammar ? form.path : "logit_bias"};
        }
      } catch (const Error& error) {
        *fault = {error.what(), form.path};
      }
    }
    if (fault->is_end || !fault->error.empty()) std::ranges::fill(logits, 0);
  };
  return request;
}

bool EngineAnswer::Add(const EngineToken& token) {
  if (!has_begun() && !TakePrompt(token.prompt)) fault_->error = kDamagedLogits;
  if (!fault_->error.empty()) {
    end_.field = fault_->field;
    Fail(fault_->error);
    return false;
  }
  if (fault_->is_end) {
    Finish(StopReason::kEos);
    return false;
  }
  if (end_.new_tokens == 0) end_.cached_tokens = token.cached;
  if (request_.options.max_new_tokens == 0) {
    Finish(StopReason::kMaxNewTokens);
    return false;
  }
  ++end_.new_tokens;
  if (token.is_end) {
    // Clients of an echo count on a token behind the prompt.
    if (request_.wants_prompt_logprobs) Hold(token, "");
    Finish(StopReason::kEos);
    return false;
  }
  const std::string text = stream_.Add(token.token);
  if (request_.top_logprobs) Hold(token, text);
  decoded_ += text.size();
  std::string shown = stops_.Add(text, MayStop());
  const bool is_whole = request_.is_whole && request_.is_whole(shown);
  Emit(std::move(shown), is_whole);
  if (is_whole) {
    end_.reason = StopReason::kEos;
    listener_.on_end(end_);
  } else if (!stops_.found().empty()) {
    Finish(StopReason::kStopText);
  } else if (token.is_last) {
    Finish(is_cut_ ? StopReason::kContext : StopReason::kMaxNewTokens);
  } else {
    return true;
  }
  return false;
}

void EngineAnswer::Fail(const std::string& error) {
  end_.error = error;
  listener_.on_end(end_);
}

double EngineAnswer::TakeTokenSeconds() {
  const double now = watch_.seconds();
  return now - std::exchange(last_token_, now);
}

AnswerToken EngineAnswer::Scored(const TokenLogprob& token,
                                 const std::vector<TokenLogprob>& top) const {
  AnswerToken scored{.token = token.token,
                     .bytes = TokenBytes(*model_->tokenizer, token.token),
                     .logprob = token.logprob};
  scored.top.reserve(top.size());
  for (const TokenLogprob& other : top) scored.top.emplace_back(other.token, other.logprob);
  return scored;
}

bool EngineAnswer::TakePrompt(const std::vector<ScoredToken>& scored) {
  if (!request_.wants_prompt_logprobs) return true;
  prompt_.reserve(request_.prompt.size());
  prompt_.push_back(Scored({.token = request_.prompt.front()}, {}));
  for (const ScoredToken& token : scored) {
    if (!std::isfinite(token.token.logprob)) return false;
    prompt_.push_back(Scored(token.token, token.top));
  }
  return true;
}

void EngineAnswer::Hold(const EngineToken& token, std::string_view text) {
  AnswerToken scored = Scored({token.token, token.logprob}, token.top);
  scored.characters = CountCharacters(text);
  held_.push_back({std::move(scored), decoded_, decoded_ + text.size()});
}

// Tokens of a stop text stay back, as it does.
void EngineAnswer::Emit(std::string text, bool all) {
  shown_ += text.size();
  GenerationPiece piece{.text = std::move(text), .prompt = std::exchange(prompt_, {})};
  while (!held_.empty()) {
    const bool is_shown =
        stops_.found().empty() ? held_.front().end <= shown_ : held_.front().begin < shown_;
    if (!is_shown && !all) break;
    piece.tokens.push_back(std::move(held_.front().token));
    held_.pop_front();
  }
  if (piece.text.empty() && piece.tokens.empty() && piece.prompt.empty()) return;
  listener_.on_piece(std::move(piece));
}

void EngineAnswer::Finish(StopReason reason) {
  end_.reason = reason;
  end_.stop = stops_.found();
  if (stops_.found().empty()) {
    // What was held back because a character or a stop text might have followed.
    std::string rest = stream_.Finish();
    // The beginning of a form, not half a character of it.
    const bool is_cut = reason == StopReason::kContext || reason == StopReason::kMaxNewTokens;
    if (is_cut && request_.format.grammar) {
      while (rest.ends_with(kReplacementCharacter)) {
        rest.resize(rest.size() - kReplacementCharacter.size());
      }
    }
    std::string text = stops_.Add(rest, MayStop());
    if (!stops_.found().empty()) {
      end_.reason = StopReason::kStopText;
      end_.stop = stops_.found();
    }
    text += stops_.Finish();
    Emit(std::move(text), stops_.found().empty());
  }
  listener_.on_end(end_);
}

}  // namespace qlora
