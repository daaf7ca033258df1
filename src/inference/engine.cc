#include "inference/engine.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace qlora {
namespace {

double LogProbability(std::span<const float> logits, std::int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return logits[token] - largest - std::log(sum);
}

}  // namespace

struct Engine::Sequence {
  Sequence(RequestId number, EngineRequest asked)
      : id(number), request(std::move(asked)), sampler(request.options), ids(request.prompt) {}

  std::int64_t length() const { return std::ssize(ids); }
  std::int64_t new_tokens() const { return length() - std::ssize(request.prompt); }

  RequestId id;
  EngineRequest request;
  Sampler sampler;
  std::vector<std::int32_t> ids;  // of prompt and answer
  std::int64_t slot = -1;
  std::int64_t passed = 0;  // tokens whose state is in the slot
  bool is_done = false;
};

Engine::Engine(const Decoder& decoder, EvalMemory& passes, const StatePool& pool,
               std::int64_t max_rows)
    : decoder_(decoder), passes_(passes), pool_(pool), max_rows_(max_rows) {
  for (std::int64_t slot = pool.slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Engine::~Engine() = default;

RequestId Engine::Submit(EngineRequest request) {
  // The last token of an answer is not read again.
  const std::int64_t positions = std::ssize(request.prompt) + request.options.max_new_tokens - 1;
  if (request.prompt.empty() || request.options.max_new_tokens < 1 || positions > pool_.capacity) {
    ThrowRuntime("[engine] a prompt of {} tokens and an answer of {}: a slot has {} positions",
                 request.prompt.size(), request.options.max_new_tokens, pool_.capacity);
  }
  waiting_.push_back(std::make_unique<Sequence>(next_id_, std::move(request)));
  return next_id_++;
}

std::vector<EngineToken> Engine::Step() {
  Admit();
  std::vector<Part> parts = NextParts();
  std::vector<EngineToken> tokens;
  // Rows of one adapter stand together. Through experts there is one pass for each adapter.
  const auto adapter = [](const Part& part) { return part.sequence->request.adapter; };
  std::vector<Part> in_order;
  while (!parts.empty()) {
    const LoraAdapter* const first = adapter(parts.front());
    const auto rest = std::stable_partition(
        parts.begin(), parts.end(), [&](const Part& part) { return adapter(part) == first; });
    in_order.insert(in_order.end(), parts.begin(), rest);
    parts.erase(parts.begin(), rest);
    if (!parts.empty() && decoder_.config().experts().num_experts == 0) continue;
    Run(in_order, tokens);
    in_order.clear();
  }
  std::erase_if(running_, [](const SequencePtr& sequence) { return sequence->is_done; });
  std::ranges::sort(tokens, {}, &EngineToken::request);
  return tokens;
}

void Engine::Cancel(RequestId request) {
  const auto is_it = [request](const SequencePtr& sequence) { return sequence->id == request; };
  std::erase_if(waiting_, is_it);
  std::erase_if(running_, [&](const SequencePtr& sequence) {
    if (is_it(sequence)) Release(*sequence);
    return is_it(sequence);
  });
}

void Engine::Admit() {
  while (!waiting_.empty() && !free_slots_.empty()) {
    waiting_.front()->slot = free_slots_.back();
    free_slots_.pop_back();
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// Sequences that are written come first, so that no prompt keeps them waiting; what is left of the
// rows goes to prompts, in the order of their requests.
std::vector<Engine::Part> Engine::NextParts() {
  std::vector<Part> parts;
  std::int64_t rows = max_rows_;
  for (const bool of_prompts : {false, true}) {
    for (const SequencePtr& sequence : running_) {
      // Beyond the original context of longrope, all keys are computed again.
      Sequence& s = *sequence;
      if (!decoder_.ropes().HaveSameTables(s.passed, s.length())) s.passed = 0;
      const std::int64_t missing = s.length() - s.passed;
      if (rows == 0 || (missing > 1) != of_prompts) continue;
      parts.push_back({&s, std::min(rows, missing)});
      rows -= parts.back().rows;
    }
  }
  return parts;
}

void Engine::Run(std::span<const Part> parts, std::vector<EngineToken>& tokens) {
  std::vector<SlotRows> slots;
  for (const auto& [sequence, rows] : parts) {
    const std::span<const std::int32_t> ids = sequence->ids;
    slots.push_back({.slot = sequence->slot,
                     .first = sequence->passed,
                     .ids = ids.subspan(sequence->passed, rows),
                     .length = sequence->length(),
                     .adapter = sequence->request.adapter,
                     .wants_logits = sequence->passed + rows == sequence->length()});
  }
  const std::vector<std::vector<float>> logits = RunSlots(decoder_, slots, pool_, passes_);
  std::size_t next = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Sequence& sequence = *parts[i].sequence;
    sequence.passed += parts[i].rows;
    if (slots[i].wants_logits) tokens.push_back(Choose(sequence, logits[next++]));
  }
}

EngineToken Engine::Choose(Sequence& sequence, std::span<const float> logits) {
  // The number of new tokens numbers the draws, so a seed gives the same answer again.
  EngineToken chosen{.request = sequence.id,
                     .token = sequence.sampler.Next(logits, sequence.ids, sequence.new_tokens())};
  if (sequence.request.wants_logprobs) chosen.logprob = LogProbability(logits, chosen.token);
  sequence.ids.push_back(chosen.token);
  const std::vector<std::int32_t>& ends = sequence.request.ends;
  chosen.is_end = std::ranges::find(ends, chosen.token) != ends.end();
  chosen.is_last =
      chosen.is_end || sequence.new_tokens() == sequence.request.options.max_new_tokens;
  // No pass for a token that nobody reads.
  if (chosen.is_last) Release(sequence);
  return chosen;
}

void Engine::Release(Sequence& sequence) {
  free_slots_.push_back(sequence.slot);
  sequence.is_done = true;
}

}  // namespace qlora
