#include "serve/engine/prompt_logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/batch.h"
#include "base/check.h"
#include "pass/eval_memory.h"
#include "pass/loss.h"
#include "serve/token_bytes.h"

namespace qlora {
namespace {

// Fills the values of a token from the logits of the row before it.
void Score(std::span<const double> logits, std::int64_t top, AnswerToken& token) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  token.logprob = logits[token.token] - log_sum;
  if (!std::isfinite(token.logprob)) {
    ThrowRuntime("a log-probability is {}: base or adapter is damaged, or of another model",
                 token.logprob);
  }
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<std::int64_t>(top, std::ssize(ids));
  std::partial_sort(ids.begin(), end, ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (auto id = ids.begin(); id != end; ++id) token.top.emplace_back(*id, logits[*id] - log_sum);
}

}  // namespace

std::vector<AnswerToken> PromptLogprobs(const Decoder& decoder, const LoraAdapter* adapter,
                                        std::span<const std::int32_t> ids, std::int64_t top,
                                        const Tokenizer& tokenizer) {
  std::vector<AnswerToken> tokens;
  for (const std::int32_t id : ids) {
    tokens.push_back({.token = id, .bytes = TokenBytes(tokenizer, id)});
  }
  if (ids.size() < 2) return tokens;
  Sample sample;
  sample.ids.assign(ids.begin(), ids.end());
  sample.labels = sample.ids;
  sample.labels.front() = kIgnoreLabel;
  const Batch batch = MakeBatch(std::vector<Sample>{sample});
  Arena memory = ReserveEvaluation(decoder, AdaptersOf(adapter), batch.rows());
  EvalMemory passes(decoder, AdaptersOf(adapter), memory);
  Activations& activations = passes.ForRows(batch.rows());
  const PassInputs inputs =
      PrepareInputs(decoder, batch, {ForAllRows(adapter, batch.rows())}, activations);
  Forward(decoder, inputs, activations);
  ForEachLogits(decoder, inputs, activations, nullptr,
                [&](std::int64_t row, std::span<const double> logits) {
                  Score(logits, top, tokens[row + 1]);
                  return LogitGradient();
                });
  return tokens;
}

}  // namespace qlora
