// Many sequences that are written at the same time, each with its own adapter and its own way to
// choose tokens.
//
//   Model (model.cc)      loads weights and adapter; generates, chats, evaluates for include/qlora
//   text_answers.h        prompts -> requests -> texts, piece by piece
//   Engine                requests -> rows of passes -> tokens
//   generation_memory.h   tables, activations and slots, kept from text to text
//   sampler.h             logits -> the next token
//   stop_text.h           ends the text at a stop string; tokenizer/ decodes ids as they come
//   dataset_evaluation.h  mean loss of a data set, without a state
//
// A step is one pass over at most kMostRowByRow rows, in the order of adapters:
//
//   rows   a | b | c c c c c c | d d d      a, b: the last token of sequences that are written
//                                           c, d: parts of the prompts of others
//
// Rows are computed one by one (ops::Linear), so that a request has the same bits whoever else is
// in the pass, and however its prompt is cut.
#ifndef QLORA_INFERENCE_ENGINE_H_
#define QLORA_INFERENCE_ENGINE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "inference/sampler.h"
#include "pass/slot_pass.h"

namespace qlora {

struct EngineRequest {
  std::vector<std::int32_t> prompt = {};  // at least one token
  const LoraAdapter* adapter = nullptr;   // null: the base alone
  GenerateOptions options = {};           // max_new_tokens, and what a Sampler reads
  std::vector<std::int32_t> ends = {};    // tokens that end the answer, and belong to it
  bool wants_logprobs = false;
};
using RequestId = std::int64_t;

struct EngineToken {
  RequestId request = 0;
  std::int32_t token = 0;
  // Of the distribution of the model, before penalty and temperature, in nats; where it is wanted.
  double logprob = 0;
  bool is_end = false;   // one of the ends
  bool is_last = false;  // the request is done, and its slot free
};

class Engine {
 public:
  // passes: in memory of ReserveSlots for max_rows rows and the adapters of all requests; max_rows:
  // of a pass, at most kMostRowByRow. All must outlive this.
  Engine(const Decoder& decoder, EvalMemory& passes, const StatePool& pool, std::int64_t max_rows);
  ~Engine();

  // Takes a request, which waits until a slot is free. Errors: InvalidInput for options of a
  // sampler that are out of range; Runtime, a bug of the caller, for a prompt without tokens, or
  // one that a slot has no room for with its answer.
  RequestId Submit(EngineRequest request);
  // Runs the next pass. Returns the tokens that were chosen, in the order of their requests.
  std::vector<EngineToken> Step();
  // Forgets a request, and frees its slot. Does nothing for one that is done.
  void Cancel(RequestId request);
  bool is_idle() const { return running_.empty() && waiting_.empty(); }

 private:
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;
  // The next rows of a sequence.
  struct Part {
    Sequence* sequence;
    std::int64_t rows;
  };

  void Admit();
  std::vector<Part> NextParts();
  void Run(std::span<const Part> parts, std::vector<EngineToken>& tokens);
  EngineToken Choose(Sequence& sequence, std::span<const float> logits);
  void Release(Sequence& sequence);

  const Decoder& decoder_;
  EvalMemory& passes_;
  const StatePool& pool_;
  const std::int64_t max_rows_;
  RequestId next_id_ = 0;
  std::vector<std::int64_t> free_slots_;
  std::deque<SequencePtr> waiting_;   // in the order of requests
  std::vector<SequencePtr> running_;  // likewise
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_ENGINE_H_
