// One answer that an engine writes: its tokens become pieces of text for a listener.
#ifndef QLORA_SERVE_ENGINE_ENGINE_ANSWER_H_
#define QLORA_SERVE_ENGINE_ENGINE_ANSWER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/stopwatch.h"
#include "inference/engine.h"
#include "inference/stop_texts.h"
#include "serve/generation_service.h"
#include "serve/served_models.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

class EngineAnswer {
 public:
  // room: tokens that the context has for the answer.
  EngineAnswer(ServedModelPtr model, GenerationRequest request, GenerationListener listener,
               std::int64_t room);

  // What the engine is to be asked, once. What is wrong with the logits ends this answer alone, and
  // so does a request that leaves no token to choose.
  EngineRequest TakeRequest();
  // Takes the next token. Returns false when the answer has ended, and the listener knows.
  bool Add(const EngineToken& token);
  // Ends the answer, for a fault within the server.
  void Fail(const std::string& error);

  const ServedModel& model() const { return *model_; }
  const GenerationRequest& request() const { return request_; }
  bool has_begun() const { return end_.new_tokens > 0; }
  std::int64_t prompt_tokens() const { return end_.prompt_tokens; }
  const GenerationEnd& end() const { return end_; }
  // Seconds since the request, and from the token before the last one to that.
  double seconds() const { return watch_.seconds(); }
  double TakeTokenSeconds();

 private:
  // A token whose text has not been shown.
  struct HeldToken {
    AnswerToken token;
    std::size_t begin;  // of its text in the answer
    std::size_t end;
  };

  // As of GenerationEnd; no error: none.
  struct Fault {
    std::string error = {};
    std::string field = {};
    bool is_end = false;  // none: a form is complete, and the model has no token for its end
  };

  // A token with the likeliest ones beside it.
  AnswerToken Scored(const TokenLogprob& token, const std::vector<TokenLogprob>& top) const;
  // Log-probabilities of the prompt leave with the first piece. False where they are none.
  bool TakePrompt(const std::vector<ScoredToken>& scored);
  // text: what it adds to the answer.
  void Hold(const EngineToken& token, std::string_view text);
  // Hands on text, and the tokens that belong to it. all: also those that are held.
  void Emit(std::string text, bool all = false);
  void Finish(StopReason reason);
  // A stop text counts where it ends beyond min_tokens.
  bool MayStop() const { return end_.new_tokens > request_.min_tokens; }

  ServedModelPtr model_;
  GenerationRequest request_;
  GenerationListener listener_;
  bool is_cut_;  // by the context
  Tokenizer::StreamDecoder stream_;
  StopTexts stops_;
  std::shared_ptr<Fault> fault_ = std::make_shared<Fault>();
  std::vector<AnswerToken> prompt_;
  std::deque<HeldToken> held_;
  std::size_t decoded_ = 0;  // bytes of the answer
  std::size_t shown_ = 0;
  GenerationEnd end_;
  Stopwatch watch_;
  double last_token_ = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ENGINE_ENGINE_ANSWER_H_
