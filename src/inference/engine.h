// Many sequences that are written at the same time, each with its own adapter and its own way to
// choose tokens.
//
//   Model (model.cc)      loads weights and adapter; generates, chats, evaluates for include/qlora
//   text_answers.h        prompts -> requests -> texts, piece by piece
//   Engine                requests -> rows of passes -> tokens
//   generation_memory.h   tables, activations and slots, kept from text to text
//   sampler.h             logits -> the next token
//   stop_texts.h          ends the text at a stop string; tokenizer/ decodes ids as they come
//   dataset_evaluation.h  mean loss of a data set, without a state
//
// A step is a pass over the last tokens of all sequences that are written, then one over parts of
// prompts, each in the order of adapters:
//
//   written   a | b | c      SumOrder::kFew: a token of each
//   prompts   d d d d | e e  SumOrder::kMany
//
// A request has the same bits whoever else is in the passes, and however its prompt is cut, because
// the bits of a row depend on no other row, and which order a token's row is computed in depends on
// its place in the request alone: kMany in prompts that are not short (kShortPrompt), otherwise
// kFew. docs/engine.md has the reasons.
//
// A slot keeps the keys and values of its last prompt. A prompt that begins with the same tokens,
// for the same adapter, goes on from them, or from a copy. Delta rules and convolutions keep no
// state of a prefix: such models read each prompt whole.
#ifndef QLORA_INFERENCE_ENGINE_H_
#define QLORA_INFERENCE_ENGINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "inference/sampler.h"
#include "pass/slot_pass.h"

namespace qlora {

// Prompts of at most so many tokens are never cut, and are computed as written tokens are. Dot
// products of prepacked 4-bit weights are faster than panels up to more rows than those of others,
// which decode a weight for every few rows.
inline constexpr std::int64_t kShortPrompt = 8;
inline constexpr std::int64_t kShortPromptPrepacked = 64;
// More rows of prompts in a pass are no faster: CPUs decode weights once for as many.
inline constexpr std::int64_t kMostPromptRows = 1024;

// The tokens of a prompt, which all answers to it share.
class PromptTokens {
 public:
  using value_type = std::int32_t;
  using const_iterator = std::vector<std::int32_t>::const_iterator;

  PromptTokens() : PromptTokens(std::vector<std::int32_t>()) {}
  PromptTokens(std::vector<std::int32_t> ids)
      : ids_(std::make_shared<const std::vector<std::int32_t>>(std::move(ids))) {}
  PromptTokens(std::initializer_list<std::int32_t> ids)
      : PromptTokens(std::vector<std::int32_t>(ids)) {}

  operator const std::vector<std::int32_t>&() const { return *ids_; }
  std::size_t size() const { return ids_->size(); }
  bool empty() const { return ids_->empty(); }
  std::int32_t front() const { return ids_->front(); }
  const_iterator begin() const { return ids_->begin(); }
  const_iterator end() const { return ids_->end(); }
  friend bool operator==(const PromptTokens& a, const PromptTokens& b) {
    return *a.ids_ == *b.ids_;
  }

 private:
  std::shared_ptr<const std::vector<std::int32_t>> ids_;
};

struct EngineRequest {
  PromptTokens prompt = {};              // at least one token
  const LoraAdapter* adapter = nullptr;  // null: the base alone
  GenerateOptions options = {};          // max_new_tokens, and what a Sampler reads
  std::vector<std::int32_t> ends = {};   // tokens that end the answer, and belong to it
  // Log-probabilities of chosen tokens, and of so many of the likeliest ones beside them.
  std::optional<std::int64_t> top_logprobs = {};
  // Log-probabilities of the prompt's tokens, too, which is then read whole.
  bool wants_prompt_logprobs = false;
  bool keeps_prompt = true;  // false: it is read whole, and kept for no other
  // Changes the logits (V) of the next token before it is chosen, given the answer so far; may be
  // empty. Log-probabilities are those before it.
  std::function<void(std::span<const std::int32_t> answer, std::span<float> logits)> edit = {};
};
using RequestId = std::int64_t;

struct TokenLogprob {
  std::int32_t token = 0;
  double logprob = 0;  // of the distribution of the model, before penalty and temperature, in nats
  bool operator==(const TokenLogprob&) const = default;
};

struct ScoredToken {
  TokenLogprob token = {};
  std::vector<TokenLogprob> top = {};  // as that of EngineToken
};

struct EngineToken {
  RequestId request = 0;
  std::int32_t token = 0;
  double logprob = 0;                  // where it is wanted
  std::vector<TokenLogprob> top = {};  // the likeliest first; equal ones in the order of ids
  std::int64_t cached = 0;  // of the first token: tokens of the prompt that were not read again
  std::vector<ScoredToken> prompt = {};  // of the first token: where wanted, those after the first
  bool is_end = false;                   // one of the ends
  bool is_last = false;                  // the request is done, and its slot free
};

class Engine {
 public:
  // passes: in memory of ReserveSlots for max_rows rows and the adapters of all requests; max_rows:
  // of a pass, at least LeastRows unless prompts are shorter. All must outlive this.
  Engine(const Decoder& decoder, EvalMemory& passes, const StatePool& pool, std::int64_t max_rows);
  ~Engine();

  // Rows of a pass that are enough for any prompt.
  static std::int64_t LeastRows(const DecoderConfig& config);

  // Takes a request, which waits until a slot is free. Errors: InvalidInput for options of a
  // sampler that are out of range; Runtime, a bug of the caller, for a prompt without tokens, or
  // one that a slot or the passes have no room for.
  RequestId Submit(EngineRequest request);
  // Runs the next passes, with about prompt_rows rows of prompts: PromptPart or a short prompt at
  // least, and half as many more where prompts are both short and long. Returns the tokens that
  // were chosen, in the order of their requests. Errors: Runtime for logits that are NaN.
  std::vector<EngineToken> Step(std::int64_t prompt_rows = kMostPromptRows);
  // Forgets a request, and frees its slot. Does nothing for one that is done.
  void Cancel(RequestId request);
  // Forgets the prompts that slots keep for an adapter which is about to change or to go.
  void Forget(const LoraAdapter* adapter);

  bool is_idle() const { return running_.empty() && waiting_.empty(); }
  std::int64_t running() const { return std::ssize(running_); }
  std::int64_t waiting() const { return std::ssize(waiting_); }

 private:
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;
  // The next rows of a sequence.
  struct Part {
    Sequence* sequence;
    std::int64_t rows;
  };
  // The tokens at the start of a prompt whose keys and values a slot has, and the length of the
  // sequence whose rotary tables they were computed with.
  struct KeptPrompt {
    const LoraAdapter* adapter = nullptr;
    std::vector<std::int32_t> ids = {};
    std::int64_t length = 0;
  };

  void Admit();
  bool Place(Sequence& sequence);
  std::int64_t SharedRows(const KeptPrompt& kept, const EngineRequest& request) const;
  std::int64_t SharedLater(const EngineRequest& request) const;
  static void SortByAdapter(std::vector<Part>& parts);
  std::int64_t WriteNext(std::int64_t prompt_rows, std::vector<EngineToken>& tokens);
  void ReadPrompts(std::int64_t rows, std::vector<EngineToken>& tokens);
  void Run(std::span<const Part> parts, SumOrder order, std::vector<EngineToken>& tokens);
  void Score(Sequence& sequence, std::int64_t at, std::span<const float> logits);
  EngineToken Choose(Sequence& sequence, std::span<const float> logits);
  void Release(Sequence& sequence);

  const Decoder& decoder_;
  EvalMemory& passes_;
  const StatePool& pool_;
  const std::int64_t max_rows_;
  const std::int64_t short_prompt_;
  RequestId next_id_ = 0;
  std::vector<KeptPrompt> kept_;          // of each slot
  std::vector<std::int64_t> free_slots_;  // the one that was free first comes first
  std::deque<SequencePtr> waiting_;       // in the order of requests
  std::vector<SequencePtr> running_;      // in the order in which they got a slot
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_ENGINE_H_
