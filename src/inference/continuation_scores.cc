#include "inference/continuation_scores.h"

#include <algorithm>
#include <cmath>

#include "adapter/combined_adapter.h"
#include "base/check.h"
#include "inference/dataset_evaluation.h"
#include "pass/eval_memory.h"
#include "pass/loss.h"

namespace qlora {
namespace {

using Tokens = std::vector<std::int32_t>;

void CheckRequest(const ScoreRequest& request, std::int64_t vocab_size) {
  const auto check = [&](const Tokens& tokens, std::string_view what) {
    if (tokens.empty()) ThrowInvalidInput("score: a {} has no token", what);
    for (const std::int32_t id : tokens) {
      if (id >= 0 && id < vocab_size) continue;
      ThrowInvalidInput("score: token {} of a {} is none of this model, which has {}", id, what,
                        vocab_size);
    }
  };
  check(request.context, "context");
  if (request.continuations.empty()) ThrowInvalidInput("score: a context has no continuation");
  for (const Tokens& tokens : request.continuations) check(tokens, "continuation");
}

// Appends the rows behind the last token of the context: that token, and the continuation but for
// its last token.
void AppendContinuation(std::int32_t before, const Tokens& continuation, ScoreRows& rows) {
  Sample& sample = rows.sample;
  sample.ids.push_back(before);
  sample.labels.push_back(kIgnoreLabel);
  sample.ids.insert(sample.ids.end(), continuation.begin(), continuation.end() - 1);
  sample.labels.insert(sample.labels.end(), continuation.begin(), continuation.end() - 1);
  rows.ends.push_back(std::ssize(sample.ids) - 1);
  rows.lasts.push_back(continuation.back());
  rows.counts.push_back(std::ssize(continuation));
}

void AppendContext(const Tokens& context, ScoreRows& rows) {
  rows.sample.ids.insert(rows.sample.ids.end(), context.begin(), context.end() - 1);
  rows.sample.labels.resize(rows.sample.ids.size(), kIgnoreLabel);
}

// The last `limit` rows of a context and one continuation.
ScoreRows CutRows(const ScoreRequest& request, const Tokens& continuation, std::int64_t limit) {
  const std::int64_t kept = limit + 1 - std::ssize(continuation);
  if (kept < 1) {
    ThrowInvalidInput("score: a continuation has {} tokens; this model reads at most {}",
                      continuation.size(), limit);
  }
  const std::int64_t begin = std::max<std::int64_t>(0, std::ssize(request.context) - kept);
  const Tokens context(request.context.begin() + begin, request.context.end());
  ScoreRows rows;
  AppendContext(context, rows);
  AppendContinuation(context.back(), continuation, rows);
  return rows;
}

ScoreRows SharedRows(const ScoreRequest& request) {
  ScoreRows rows;
  AppendContext(request.context, rows);
  for (const Tokens& continuation : request.continuations) {
    if (request.continuations.size() > 1) rows.sample.branches.push_back(rows.sample.ids.size());
    AppendContinuation(request.context.back(), continuation, rows);
  }
  return rows;
}

Batch BatchOf(std::span<const ScoreRows> rows) {
  std::vector<Sample> samples;
  for (const ScoreRows& one : rows) samples.push_back(one.sample);
  Batch batch = MakeBatch(samples);
  std::int64_t first = 0;
  for (const ScoreRows& one : rows) {
    for (std::size_t i = 0; i < one.ends.size(); ++i) {
      batch.targets[first + one.ends[i]] = one.lasts[i];
    }
    first += std::ssize(one.sample.ids);
  }
  return batch;
}

}  // namespace

std::vector<ScoreRows> LayOutScores(std::span<const ScoreRequest> requests, std::int64_t limit,
                                    std::int64_t vocab_size) {
  std::vector<ScoreRows> all;
  for (const ScoreRequest& request : requests) {
    CheckRequest(request, vocab_size);
    std::int64_t longest = 0;
    for (const Tokens& tokens : request.continuations) {
      longest = std::max(longest, std::ssize(tokens));
    }
    if (std::ssize(request.context) + longest - 1 <= limit) {
      all.push_back(SharedRows(request));
      continue;
    }
    for (const Tokens& tokens : request.continuations) {
      all.push_back(CutRows(request, tokens, limit));
    }
  }
  return all;
}

std::vector<ContinuationScore> RunScores(const Decoder& decoder, const LoraAdapter* adapter,
                                         std::span<const ScoreRows> all,
                                         const ScoreProgress& progress) {
  const auto length = [&](std::int64_t i) { return std::ssize(all[i].sample.ids); };
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < std::ssize(all); ++i) largest = std::max(largest, length(i));
  const std::vector<PassSamples> passes = GroupSamples(std::ssize(all), EvalRows(largest), length);
  std::vector<Batch> batches;
  std::int64_t rows = 0;
  std::int64_t unfolded = 0;
  for (const PassSamples& pass : passes) {
    const Batch& batch =
        batches.emplace_back(BatchOf(all.subspan(pass.begin, pass.end - pass.begin)));
    rows = std::max(rows, batch.rows());
    unfolded = std::max(unfolded, batch.unfolded_rows());
  }
  const Adapters adapters = AdaptersOf(adapter);
  Arena memory = ReserveEvaluation(decoder, adapters, rows, unfolded);
  EvalMemory activations_of(decoder, adapters, memory);
  std::vector<ContinuationScore> scores;
  for (std::size_t p = 0; p < passes.size(); ++p) {
    const auto [begin, end] = passes[p];
    const Batch& batch = batches[p];
    if (progress) progress(begin, std::ssize(all));
    Activations& activations = activations_of.ForRows(batch.rows(), batch.unfolded_rows());
    const PassInputs inputs =
        PrepareInputs(decoder, batch, {ForAllRows(adapter, batch.rows())}, activations);
    Forward(decoder, inputs, activations);
    const RowScores of_rows = ScoresOfRows(decoder, inputs, activations);
    std::size_t row = 0;
    for (const ScoreRows& one : all.subspan(begin, end - begin)) {
      for (const std::int64_t count : one.counts) {
        ContinuationScore& score = scores.emplace_back();
        score.tokens = count;
        score.is_greedy = true;
        for (std::int64_t t = 0; t < count; ++t, ++row) {
          score.logprob += of_rows.logprobs[row];
          score.is_greedy = score.is_greedy && of_rows.hits[row] != 0;
        }
        if (!std::isfinite(score.logprob)) {
          ThrowRuntime(
              "the log-probability of a text is {}: base or adapter is damaged, or of another "
              "model",
              score.logprob);
        }
      }
    }
  }
  return scores;
}

}  // namespace qlora
