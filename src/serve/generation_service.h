// Texts for many clients at the same time: requests -> the engine, on one thread -> pieces.
#ifndef QLORA_SERVE_GENERATION_SERVICE_H_
#define QLORA_SERVE_GENERATION_SERVICE_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/engine.h"
#include "inference/loaded_model.h"
#include "qlora/model.h"

namespace qlora {

struct ByteGrammar;
struct ServedModel;
class TokenTexts;

// What an answer has to be a text of (structured/). No grammar: any text.
struct AnswerGrammar {
  std::shared_ptr<const ByteGrammar> grammar = {};
  std::shared_ptr<const TokenTexts> texts = {};  // of the model's tokens
  std::string path = {};                         // of the field that asks for it
  std::string begins_behind = {};  // the text that ends what stands before: a thought; "": nothing
};

// What chat completions, completions, responses and messages ask for, once their fields are read.
// With max_new_tokens 0 nothing is written, as for the scores of a prompt.
struct GenerationRequest {
  // Base or an adapter: the one that the rest was read for.
  std::shared_ptr<const ServedModel> model = {};
  PromptTokens prompt = {};             // at least one token
  GenerateOptions options = {};         // max_new_tokens, sampling, seed of this choice
  std::vector<std::string> stops = {};  // texts that end the answer and are not part of it
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::int64_t min_tokens = 0;  // at most max_new_tokens
  bool ignore_eos = false;
  AnswerGrammar format = {};
  // Reads the answer's text as it comes, on the thread of the engine; true: it ends here. Of one
  // answer alone.
  std::function<bool(std::string_view piece)> is_whole = {};
  bool keeps_special_tokens = false;  // their texts are part of the answer: of calls and thoughts
  std::optional<std::int64_t> top_logprobs = {};  // 0 to 20; nothing: no log-probabilities
  bool wants_prompt_logprobs = false;             // of echo; as many beside each as top_logprobs
  bool keeps_prompt = true;  // false: the prompt is read anew, and not kept for others
};

// A token of an answer, or of its prompt (echo).
struct AnswerToken {
  std::int32_t token = 0;
  std::string bytes = {};
  std::int64_t characters = 0;  // that it adds to the text of the answer
  double logprob = 0;
  std::vector<std::pair<std::int32_t, double>> top = {};  // most likely first
};

// What has become certain since the last one: whole characters, and nothing that may begin a stop
// text.
struct GenerationPiece {
  std::string text = {};
  std::vector<AnswerToken> tokens = {};  // where log-probabilities are wanted
  std::vector<AnswerToken> prompt = {};  // of the first piece, where wanted; the first has none: 0
};

struct GenerationEnd {
  StopReason reason = StopReason::kEos;
  std::string stop = {};           // the stop text that was found
  std::int64_t prompt_tokens = 0;  // all of them
  std::int64_t cached_tokens = 0;  // of these, not computed anew
  std::int64_t new_tokens = 0;     // the end token among them
  std::string error = {};          // why it is no answer; reason is of no meaning
  std::string field = {};          // of the request, where the error lies; "": within the server
};

// Is called on the thread of the engine, pieces in order, then the end; must not wait.
struct GenerationListener {
  std::function<void(GenerationPiece piece)> on_piece;
  std::function<void(GenerationEnd end)> on_end;
};

// What decisions ask for: passes without slots, one for each part, between which answers are
// written. Both functions are called on the thread of the engine, which holds them until the end.
struct PartedPasses {
  std::int64_t parts = 1;
  // Runs the next part, with the decoder and the memory of the engine's passes.
  std::function<void(const Decoder& decoder, Arena& memory)> run_part;
  // After the last part: null; else what ended the parts: what run_part threw, or ApiError 503
  // where the server stops. Must not wait.
  std::function<void(std::exception_ptr error)> on_end;
};

using GenerationId = std::int64_t;

// Whatever a request has the engine compute is submitted: it is counted, and refused beyond the
// queue; it ends when its client has left (Cancel) or the server stops; it gives way to others.
class GenerationService {
 public:
  virtual ~GenerationService() = default;
  // Errors: ApiError: 400 context_length_exceeded, 429 queue_full, 503 while the server stops.
  virtual GenerationId Submit(GenerationRequest request, GenerationListener listener) = 0;
  // Errors: as CheckRoomForPasses.
  virtual GenerationId SubmitPasses(PartedPasses passes) = 0;
  // Spares the caller the work of laying out what would be refused. Errors: ApiError 429
  // queue_full, 503 while the server stops.
  virtual void CheckRoomForPasses() const = 0;
  // Answers that are written or wait at the same time, at most.
  virtual std::int64_t most_answers() const = 0;
  // Frees the slot before the next step; no further part is run. The listener, or on_end, is not
  // called again.
  virtual void Cancel(GenerationId id) = 0;
  // Runs work of the server itself on the thread of the engine, between two steps, and waits for
  // its end. Not from that thread. Errors: those of work; ApiError 503 while the server stops.
  virtual void RunAlone(const std::function<void()>& work) = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_GENERATION_SERVICE_H_
