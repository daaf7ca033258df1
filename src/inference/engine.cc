#include "inference/engine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace qlora {
namespace {

// A prompt that others went before in so many steps goes first.
constexpr std::int64_t kMostPassedOver = 8;
// A request waits for a neighbour that reads the same tokens when these are more than so many.
constexpr std::int64_t kWorthWaiting = 64;

// log of the sum of exp of all logits.
double LogSum(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

std::vector<TokenLogprob> Likeliest(std::span<const float> logits, double log_sum,
                                    std::int64_t count) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<std::int64_t>(count, std::ssize(ids));
  std::partial_sort(ids.begin(), end, ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::vector<TokenLogprob> top;
  top.reserve(end - ids.begin());
  for (auto id = ids.begin(); id != end; ++id) top.push_back({*id, logits[*id] - log_sum});
  return top;
}

// The tokens with which both begin.
std::int64_t CommonTokens(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

std::int64_t ShortPrompt(const DecoderWeights& weights) {
  const WeightView& first = weights.layers.front().linears.qkv.front().weight;
  return first.is_reordered() ? kShortPromptPrepacked : kShortPrompt;
}

}  // namespace

struct Engine::Sequence {
  Sequence(RequestId number, EngineRequest asked, std::int64_t longest_short)
      : id(number),
        request(std::move(asked)),
        sampler(request.options),
        short_prompt(longest_short) {}

  std::int64_t length() const { return std::ssize(ids); }
  std::int64_t new_tokens() const { return length() - std::ssize(request.prompt); }
  std::span<const std::int32_t> answer() const {
    return std::span(ids).subspan(request.prompt.size());
  }
  bool is_reading() const { return passed < prompt_end; }
  // The logits of the prompt's rows say what its tokens have; once.
  bool scores_prompt() const { return request.wants_prompt_logprobs && new_tokens() == 0; }
  // All tokens from `first` on are to be read.
  void ReadFrom(std::int64_t first) {
    passed = first;
    prompt_end = length() > short_prompt ? length() : 0;
  }

  RequestId id;
  EngineRequest request;
  Sampler sampler;
  std::vector<std::int32_t> ids;    // of prompt and answer, once there is a slot
  std::vector<ScoredToken> scored;  // of the prompt
  std::int64_t short_prompt = 0;    // the length up to which a prompt is short
  std::int64_t slot = -1;
  std::int64_t passed = 0;       // tokens whose state is in the slot
  std::int64_t prompt_end = 0;   // tokens before it are rows of kMany
  std::int64_t cached = 0;       // tokens of the prompt that the slot had
  std::int64_t passed_over = 0;  // steps in which other prompts were read
  bool is_done = false;
};

Engine::Engine(const Decoder& decoder, EvalMemory& passes, const StatePool& pool,
               std::int64_t max_rows)
    : decoder_(decoder),
      passes_(passes),
      pool_(pool),
      max_rows_(max_rows),
      short_prompt_(ShortPrompt(decoder.weights())),
      kept_(pool.slots),
      free_slots_(pool.slots) {
  std::iota(free_slots_.begin(), free_slots_.end(), 0);
}

Engine::~Engine() = default;

std::int64_t Engine::LeastRows(const DecoderConfig& config) {
  return std::max(kShortPromptPrepacked, PromptPart(config));
}

RequestId Engine::Submit(EngineRequest request) {
  const std::int64_t prompt = std::ssize(request.prompt);
  // The last token of an answer is not read again.
  const std::int64_t positions = prompt + request.options.max_new_tokens - 1;
  if (prompt == 0 || request.options.max_new_tokens < 1 || positions > pool_.capacity) {
    ThrowRuntime("[engine] a prompt of {} tokens and an answer of {}: a slot has {} positions",
                 prompt, request.options.max_new_tokens, pool_.capacity);
  }
  if (max_rows_ < std::min(prompt, std::max(short_prompt_, PromptPart(decoder_.config())))) {
    ThrowRuntime("[engine] a prompt of {} tokens, in passes of {} rows", prompt, max_rows_);
  }
  waiting_.push_back(std::make_unique<Sequence>(next_id_, std::move(request), short_prompt_));
  return next_id_++;
}

std::vector<EngineToken> Engine::Step(std::int64_t prompt_rows) {
  Admit();
  // Beyond the original context of longrope, all keys are computed again.
  for (const SequencePtr& sequence : running_) {
    KeptPrompt& kept = kept_[sequence->slot];
    if (decoder_.ropes().HaveSameTables(kept.length, sequence->length())) continue;
    sequence->ReadFrom(0);
    kept = {.adapter = kept.adapter, .length = sequence->length()};
  }
  std::vector<EngineToken> tokens;
  const std::int64_t read = WriteNext(prompt_rows, tokens);
  // Long prompts go on beside many short ones.
  const std::int64_t left = std::max(prompt_rows - read, prompt_rows / 2);
  ReadPrompts(std::max(left, PromptPart(decoder_.config())), tokens);
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

void Engine::Forget(const LoraAdapter* adapter) {
  for (KeptPrompt& kept : kept_) {
    if (kept.adapter == adapter) kept.ids.clear();
  }
}

// ---- Slots.

void Engine::Admit() {
  for (auto next = waiting_.begin(); next != waiting_.end() && !free_slots_.empty();) {
    if (!Place(**next)) {
      ++next;
      continue;
    }
    running_.push_back(std::move(*next));
    next = waiting_.erase(next);
  }
}

// The tokens of a prompt whose keys and values a slot has; the last one is read for its logits.
std::int64_t Engine::SharedRows(const KeptPrompt& kept, const EngineRequest& request) const {
  const std::int64_t prompt = std::ssize(request.prompt);
  if (kept.adapter != request.adapter || prompt <= short_prompt_ || !pool_.has_keys_alone() ||
      !decoder_.ropes().HaveSameTables(kept.length, prompt)) {
    return 0;
  }
  if (request.wants_prompt_logprobs || !request.keeps_prompt) return 0;
  return std::min(CommonTokens(kept.ids, request.prompt), prompt - 1);
}

// As many as a slot will have when a sequence that runs has read its prompt.
std::int64_t Engine::SharedLater(const EngineRequest& request) const {
  std::int64_t most = 0;
  for (const SequencePtr& other : running_) {
    if (!other->is_reading() || !other->request.keeps_prompt) continue;
    most =
        std::max(most, SharedRows({other->request.adapter, other->ids, other->length()}, request));
  }
  return most;
}

// Gives a sequence a slot, and there the tokens with which another slot can serve. Returns false
// where waiting serves better.
bool Engine::Place(Sequence& sequence) {
  const EngineRequest& request = sequence.request;
  std::int64_t source = 0;
  std::int64_t shared = 0;
  for (std::int64_t slot = 0; slot < pool_.slots; ++slot) {
    const std::int64_t rows = SharedRows(kept_[slot], request);
    if (rows > shared) {
      source = slot;
      shared = rows;
    }
  }
  if (SharedLater(request) > shared + kWorthWaiting) return false;
  // The slot itself, unless it has much more that may serve others.
  const auto at = std::ranges::find(free_slots_, source);
  const bool takes_it = at != free_slots_.end() && 2 * shared >= std::ssize(kept_[source].ids);
  const auto taken = takes_it ? at : free_slots_.begin();
  sequence.slot = *taken;
  free_slots_.erase(taken);
  if (sequence.slot != source && shared > 0) {
    CopyKeys(decoder_.backend(), pool_, source, sequence.slot, shared);
  }
  sequence.ids.assign(request.prompt.begin(), request.prompt.end());
  sequence.ReadFrom(shared);
  sequence.cached = shared;
  kept_[sequence.slot] = {request.adapter,
                          {request.prompt.begin(), request.prompt.begin() + shared},
                          sequence.length()};
  return true;
}

void Engine::Release(Sequence& sequence) {
  free_slots_.push_back(sequence.slot);
  sequence.is_done = true;
}

// ---- Passes.

void Engine::SortByAdapter(std::vector<Part>& parts) {
  std::ranges::stable_sort(parts, std::less<>(),
                           [](const Part& part) { return part.sequence->request.adapter; });
}

// The last token of each sequence that is written, and short prompts: one, and more up to so many
// rows, which are returned. Rows of one adapter stand together.
std::int64_t Engine::WriteNext(std::int64_t prompt_rows, std::vector<EngineToken>& tokens) {
  std::vector<Part> all;
  std::int64_t read = 0;
  for (const SequencePtr& sequence : running_) {
    if (sequence->is_reading()) continue;
    const std::int64_t missing = sequence->length() - sequence->passed;
    if (sequence->new_tokens() == 0) {
      if (read > 0 && read + missing > prompt_rows) continue;
      read += missing;
    }
    all.push_back({sequence.get(), missing});
  }
  SortByAdapter(all);
  const std::int64_t most = std::min(max_rows_, kMostFewRows);
  std::vector<Part> pass;
  std::int64_t rows = 0;
  for (const Part& part : all) {
    if (rows + part.rows > most) {
      Run(pass, SumOrder::kFew, tokens);
      pass.clear();
      rows = 0;
    }
    pass.push_back(part);
    rows += part.rows;
  }
  if (!pass.empty()) Run(pass, SumOrder::kFew, tokens);
  return read;
}

// The prompts with the fewest tokens first. Rows of one adapter stand together.
void Engine::ReadPrompts(std::int64_t rows, std::vector<EngineToken>& tokens) {
  std::vector<Part> prompts;
  for (const SequencePtr& sequence : running_) {
    if (sequence->is_reading() && !sequence->is_done) {
      prompts.push_back({sequence.get(), sequence->prompt_end - sequence->passed});
    }
  }
  if (prompts.empty()) return;
  std::ranges::stable_sort(prompts, {}, [](const Part& part) {
    return std::pair(part.sequence->passed_over < kMostPassedOver, part.rows);
  });
  const std::int64_t unit = PromptPart(decoder_.config());
  std::int64_t left = std::min(rows, max_rows_);
  std::vector<Part> pass;
  for (auto [sequence, missing] : prompts) {
    ++sequence->passed_over;
    if (missing > left) missing = left / unit * unit;
    if (missing == 0) continue;
    left -= missing;
    sequence->passed_over = 0;
    pass.push_back({sequence, missing});
  }
  SortByAdapter(pass);
  Run(pass, SumOrder::kMany, tokens);
}

void Engine::Run(std::span<const Part> parts, SumOrder order, std::vector<EngineToken>& tokens) {
  std::vector<SlotRows> slots;
  for (const auto& [sequence, rows] : parts) {
    const std::int64_t last = sequence->passed + rows == sequence->length() ? 1 : 0;
    slots.push_back({.slot = sequence->slot,
                     .first = sequence->passed,
                     .ids = std::span(sequence->ids).subspan(sequence->passed, rows),
                     .length = sequence->length(),
                     .adapter = sequence->request.adapter,
                     .logit_rows = sequence->scores_prompt() ? rows : last});
  }
  RunSlots(decoder_, slots, order, pool_, passes_,
           [&](std::int64_t i, std::int64_t token, std::span<const float> logits) {
             Sequence& sequence = *parts[i].sequence;
             const std::int64_t next = sequence.passed + token + 1;
             if (next < sequence.length()) return Score(sequence, next, logits);
             tokens.push_back(Choose(sequence, logits));
           });
  for (const auto& [sequence, rows] : parts) {
    const auto begin = sequence->ids.begin() + sequence->passed;
    if (order == SumOrder::kMany && sequence->request.keeps_prompt) {
      std::vector<std::int32_t>& kept = kept_[sequence->slot].ids;
      kept.insert(kept.end(), begin, begin + rows);
    }
    sequence->passed += rows;
  }
}

// Takes the log-probability of a token of the prompt from the row before it.
void Engine::Score(Sequence& sequence, std::int64_t at, std::span<const float> logits) {
  const std::int32_t token = sequence.ids[at];
  const double log_sum = LogSum(logits);
  sequence.scored.reserve(sequence.ids.size());
  sequence.scored.push_back(
      {{token, logits[token] - log_sum},
       Likeliest(logits, log_sum, sequence.request.top_logprobs.value_or(0))});
}

EngineToken Engine::Choose(Sequence& sequence, std::span<const float> logits) {
  const EngineRequest& request = sequence.request;
  EngineToken chosen{.request = sequence.id};
  if (sequence.new_tokens() == 0) {
    chosen.cached = sequence.cached;
    chosen.prompt = std::move(sequence.scored);
  }
  std::vector<float> edited;
  if (request.edit) {
    edited.assign(logits.begin(), logits.end());
    request.edit(sequence.answer(), edited);
  }
  // The number of new tokens numbers the draws, so a seed gives the same answer again.
  chosen.token =
      sequence.sampler.Next(request.edit ? edited : logits, sequence.ids, sequence.new_tokens());
  if (request.top_logprobs) {
    const double log_sum = LogSum(logits);
    chosen.logprob = logits[chosen.token] - log_sum;
    chosen.top = Likeliest(logits, log_sum, *request.top_logprobs);
  }
  sequence.ids.push_back(chosen.token);
  chosen.is_end = std::ranges::find(request.ends, chosen.token) != request.ends.end();
  chosen.is_last = chosen.is_end || sequence.new_tokens() == request.options.max_new_tokens;
  // No pass for a token that nobody reads.
  if (chosen.is_last) Release(sequence);
  return chosen;
}

}  // namespace qlora
